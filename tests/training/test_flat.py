"""Many tensors as one, and which tensors of a model ranks average."""

from __future__ import annotations

import paddle

from paddlewheel.training.sync.flat import bytes_of, flatten, shared_buffers, unflatten


def test_running_means_are_shared_and_trained_parameters_are_not_when_a_model_has_a_batch_norm() -> None:
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 3), paddle.nn.BatchNorm1D(3))
    model.register_buffer("offsets", paddle.to_tensor([1, 2]))
    model.register_buffer("seen", paddle.to_tensor([4.0]))
    # The mean and the variance of the batch norm, and the buffer of its own; whole numbers are not averaged.
    assert sorted(tuple(tensor.shape) for tensor in shared_buffers(model)) == [(1,), (3,), (3,)]


def test_tensors_come_back_when_they_were_made_one() -> None:
    tensors = [paddle.to_tensor([[1.0, 2.0], [3.0, 4.0]]), None, paddle.to_tensor([5.0])]
    flat = flatten(tensors, [4, 2, 1])
    assert flat.tolist() == [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 5.0]
    assert [part.tolist() for part in unflatten(flat, [4, 2, 1])] == [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0], [5.0]]
    assert bytes_of(flat, paddle.to_tensor([1], dtype="bfloat16")) == 30

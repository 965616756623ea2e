"""Many tensors as one, and which tensors of a model ranks average."""

from __future__ import annotations

import paddle

from paddlewheel.training.sync.flat import GradientBuffer, bytes_of, flatten, shared_buffers, unflatten


def test_running_means_are_shared_and_trained_parameters_are_not_when_a_model_has_a_batch_norm() -> None:
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 3), paddle.nn.BatchNorm1D(3))
    model.register_buffer("offsets", paddle.to_tensor([1, 2]))
    model.register_buffer("seen", paddle.to_tensor([4.0]))
    # The mean and the variance of the batch norm, and the buffer of its own; whole numbers are not averaged.
    assert sorted(tuple(tensor.shape) for tensor in shared_buffers(model)) == [(1,), (3,), (3,)]


def test_gradients_are_taken_in_when_a_network_cleared_or_set_them_itself() -> None:
    layer = paddle.nn.Linear(2, 1)
    buffer = GradientBuffer(layer.parameters(), room=1)
    layer(paddle.to_tensor([[1.0, 2.0]])).sum().backward()
    assert buffer.flat.tolist() == [1.0, 2.0, 1.0, 0.0]
    layer.clear_gradients()
    layer(paddle.to_tensor([[3.0, 4.0]])).sum().backward()
    layer.bias.grad = paddle.to_tensor([7.0])
    buffer.gather()
    assert buffer.flat.tolist() == [3.0, 4.0, 7.0, 0.0]
    buffer.clear()
    layer.weight.clear_gradient(False)
    layer.bias.clear_gradient(False)
    layer(paddle.to_tensor([[5.0, 6.0]])).sum().backward()
    buffer.gather()
    assert buffer.flat.tolist() == [5.0, 6.0, 1.0, 0.0]
    layer.bias.clear_gradient(False)
    buffer.gather()
    assert buffer.flat.tolist() == [5.0, 6.0, 0.0, 0.0]


def test_tensors_come_back_when_they_were_made_one() -> None:
    tensors = [paddle.to_tensor([[1.0, 2.0], [3.0, 4.0]]), None, paddle.to_tensor([5.0])]
    flat = flatten(tensors, [4, 2, 1])
    assert flat.tolist() == [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 5.0]
    assert [part.tolist() for part in unflatten(flat, [4, 2, 1])] == [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0], [5.0]]
    assert bytes_of(flat, paddle.to_tensor([1], dtype="bfloat16")) == 30

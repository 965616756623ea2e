"""What a recipe asks of a network beside its mathematics: activations computed again, fused kernels, a compiled graph.

A plain network goes in and comes out changed in place; it gives the same numbers. The room of what changes them, the
precision, is another.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Training
from paddlewheel.training.models import use_loss


def prepare_model(model: Any, training: Training, device: str) -> Any:
    """The network as the recipe wants it: its loss, recomputed layers, fused kernels, compiled. Before it is split.

    device: cpu or gpu; only a GPU gains by compiling.

    Raises RecipeError for a pattern that names no layer, and for `fused` where no layer has a fused form.
    """
    if training.loss is not None:
        use_loss(model, training.loss)
    recompute_layers(model, training.recompute)
    if training.fused:
        fuse_layers(model)
    if training.to_static and device == "gpu":
        import paddle

        model = paddle.jit.to_static(model, full_graph=True)
    return model


def recompute_layers(model: Any, patterns: Sequence[str]) -> None:
    """Keep only the inputs of the layers whose names match, and compute what is inside again in the backward pass
    (Chen and others 2016): less memory for more time."""
    names = [name for name, _ in model.named_sublayers()]
    idle = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
    if idle:
        some = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        raise RecipeError(f"training.recompute: no layer is called {' or '.join(idle)}; there are {some}")
    chosen: list[str] = []
    for name, layer in model.named_sublayers():
        inside = any(name.startswith(f"{outer}.") for outer in chosen)
        if not inside and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            chosen.append(name)
            layer.forward = _recomputed(layer, layer.forward)


def fuse_layers(model: Any) -> None:
    """Let every layer that has a fused form, told by an attribute `fused`, use it."""
    layers = [layer for layer in model.sublayers(include_self=True) if hasattr(layer, "fused")]
    if not layers:
        raise RecipeError("training.fused: no layer of this network has a fused form; leave it out")
    for layer in layers:
        layer.fused = True


def _recomputed(layer: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` of a layer, computed again when its gradients are wanted."""
    import paddle
    from paddle.distributed.fleet.utils import recompute

    def run(*inputs: Any) -> Any:
        needed = any(not one.stop_gradient for one in inputs if paddle.is_tensor(one))
        if not (layer.training and needed and paddle.is_grad_enabled()):
            return forward(*inputs)
        # Running means take part in no gradient, and the second time must not move them again.
        kept = [tensor for tensor in layer.state_dict().values() if tensor.stop_gradient]
        ran = False

        def once_or_again(*inputs: Any) -> Any:
            nonlocal ran
            before = [tensor.clone() for tensor in kept] if ran else []
            outputs = forward(*inputs)
            for tensor, value in zip(kept, before, strict=False):
                tensor.set_value(value)
            ran = True
            return outputs

        return recompute(once_or_again, *inputs)

    return run

"""A torch.nn.MultiheadAttention computed by `regard.attention`, and the conversion of models that contain one."""

from __future__ import annotations

import warnings
from functools import reduce
from operator import add, and_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from regard._eager import is_eager_on_cpu
from regard.errors import ArgumentError, UnsupportedError
from regard.functional import Mask, Observe, causal, dense, padding
from regard.functional.attention import attend
from regard.nn._parts import check_size, described

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

__all__ = ["TorchMultiheadAttention", "convert", "take_torch_state"]

Model = TypeVar("Model", bound=nn.Module)
_WEIGHTS = Observe(weights=True)


class TorchMultiheadAttention(nn.MultiheadAttention):
    """A torch.nn.MultiheadAttention with its constructor, parameters, state and call, computed by `regard.attention`.

    h_i = softmax(W_i^q q (W_i^k k)ᵀ / √d + mask) W_i^v v;  output = W^O [h_1; …; h_H], in every mode by one path.

    Masks are torch's: bool, where **True hides** a key, or float, added to the scores; ``key_padding_mask`` (B, S) and
    ``attn_mask`` (L, S) or (B * num_heads, L, S), of one kind or of both. Where it differs from torch's layer:

    - A query without a visible key has weights and heads of exactly 0, and so the output ``out_proj.bias``, where torch
      gives NaN on some paths; masked keys and values have no influence, even if they are NaN.
    - Weights are the probabilities before dropout, and so is the gradient through them.
    - ``is_causal=True`` hides later keys (j > i) in addition to ``attn_mask``, which it needs as in torch; torch's
      layer applies one or the other. A wrong hint can hide too much, but never too little.
    - The keys that ``add_bias_kv`` and ``add_zero_attn`` append are visible to every query, causal or not.
    - torch's encoder does not use its fused kernels in evaluation, and nested tensors are not supported.

    Shapes: query (L, B, embed_dim), key (S, B, kdim), value (S, B, vdim), with ``batch_first`` B before L and S, or all
    three without B; output as the query; weights (B, L, S), or (B, H, L, S) with ``average_attn_weights=False``, None
    with ``need_weights=False``. Keys that are appended add to S in the weights.
    Errors: `ArgumentError` for wrong sizes and masks, `UnsupportedError` for nested tensors.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.

    >>> layer = TorchMultiheadAttention(8, 2, batch_first=True)
    >>> x, hidden = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [True, True, True]])
    >>> output, weights = layer(x, x, x, key_padding_mask=hidden)
    >>> output.shape, weights.sum(-1)[1].tolist()
    (torch.Size([2, 3, 8]), [0.0, 0.0, 0.0])
    """

    def _reset_parameters(self) -> None:
        # The last step of torch's constructor. Afterwards the flag marks the weights as not packed, even if they are:
        # then torch's encoder layer does not use its fused kernel, which would bypass this layer.
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def extra_repr(self) -> str:
        return described(self, embed_dim=None, num_heads=None, dropout=0.0, batch_first=False, add_zero_attn=False)

    def forward(
        self,
        query: Float[Tensor, "*batched_L embed_dim"],
        key: Float[Tensor, "*batched_S kdim"],
        value: Float[Tensor, "*batched_S vdim"],
        key_padding_mask: Bool[Tensor, "*B S"] | Float[Tensor, "*B S"] | None = None,
        need_weights: bool = True,
        attn_mask: Bool[Tensor, "*BH L S"] | Float[Tensor, "*BH L S"] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*batched_L embed_dim"], Float[Tensor, "*BH L S"] | None]:
        """Return the output, and the weights if ``need_weights``; arguments and shapes are those of torch's layer."""
        sizes = self._sizes(query, key, value)
        mask, bias = _masks(key_padding_mask, attn_mask, is_causal, sizes)
        if bias is not None and bias.dtype == torch.float32:
            bias = bias.to(query.dtype)  # torch accepts float32 masks in half precision too
        q, k, v = map(self._split_heads, self._projected(query, key, value))
        k, v = self._appended(k, self.bias_k), self._appended(v, self.bias_v)
        dropout_p = self.dropout if self.training else 0.0
        observe = _WEIGHTS if need_weights else None
        heads, statistics = attend(q, k, v, mask=mask, bias=bias, dropout_p=dropout_p, observe=observe)
        output = self._merge_heads(heads, query)
        if statistics is None:
            return output, None
        weights = _with_gradient(statistics.weights, q, k, bias, self.head_dim**-0.5).to(query.dtype)
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if query.dim() == 3 else weights.squeeze(0)

    def _sizes(self, query: Tensor, key: Tensor, value: Tensor) -> _Sizes:
        """Check the shapes of the inputs; return those of the scores."""
        if query.is_nested or key.is_nested or value.is_nested:
            raise UnsupportedError(
                "nested tensors are not supported: pass padded ones with key_padding_mask, and convert a "
                "torch.nn.TransformerEncoder as a whole"
            )
        check_size(query, self.embed_dim, "query")
        check_size(key, self.kdim, "key", (query.dim(),))
        check_size(value, self.vdim, "value", (query.dim(),))
        length, batch = (1, 0) if self.batch_first else (0, 1)
        batched = query.dim() == 3
        if key.shape[:-1] != value.shape[:-1] or (batched and key.shape[batch] != query.shape[batch]):
            raise ArgumentError(
                "key and value must agree in length and, with the query, in batch size; got query "
                f"{tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
            )
        extra = (self.bias_k is not None) + self.add_zero_attn
        if not batched:
            return _Sizes(1, self.num_heads, query.shape[0], key.shape[0], extra, batched)
        return _Sizes(query.shape[batch], self.num_heads, query.shape[length], key.shape[length], extra, batched)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if weight is not None and query is key and key is value:
            return linear(query, weight, bias).chunk(3, -1)
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = separate if weight is None else weight.chunk(3)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return tuple(map(linear, (query, key, value), weights, biases))

    def _split_heads(self, x: Float[Tensor, "*batched_T D"]) -> Float[Tensor, "B H T d"]:
        heads = x.view(*x.shape[:-1], self.num_heads, self.head_dim)
        if x.dim() == 2:
            heads = heads.unsqueeze(0)
        return heads.transpose(1, 2) if x.dim() == 2 or self.batch_first else heads.permute(1, 2, 0, 3)

    def _appended(self, heads: Float[Tensor, "B H S d"], bias: Tensor | None) -> Float[Tensor, "B H S_extra d"]:
        """Append the keys or values of ``add_bias_kv`` and ``add_zero_attn``."""
        if bias is not None:
            last = bias.view(1, self.num_heads, 1, self.head_dim).expand(heads.shape[0], -1, -1, -1)
            heads = torch.cat([heads, last.to(heads.dtype)], 2)
        return pad(heads, (0, 0, 0, 1)) if self.add_zero_attn else heads

    def _merge_heads(self, heads: Float[Tensor, "B H L d"], query: Tensor) -> Float[Tensor, "*batched_L embed_dim"]:
        heads = heads.transpose(1, 2) if query.dim() == 2 or self.batch_first else heads.permute(2, 0, 1, 3)
        output: Tensor = self.out_proj(heads.flatten(-2))
        return output if query.dim() == 3 else output.squeeze(0)


class _Sizes(NamedTuple):
    """The sizes that masks must match."""

    batch: int
    heads: int
    queries: int
    keys: int
    extra: int  # keys that are appended, and visible to every query
    batched: bool


def _masks(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool, sizes: _Sizes
) -> tuple[Mask | None, Tensor | None]:
    """Return torch's bool masks as the operator's mask, and its float masks as the operator's bias."""
    batch, heads, queries, keys, extra, batched = sizes
    _check_mask("key_padding_mask", key_padding_mask, [(batch, keys) if batched else (keys,)])
    _check_mask("attn_mask", attn_mask, [(queries, keys), (batch * heads, queries, keys)])
    masks, biases = [], []
    if is_causal:
        if attn_mask is None:
            raise ArgumentError("is_causal=True is a hint that attn_mask is causal, and needs it; got attn_mask=None")
        band = causal(offset=0)
        if extra:
            band = dense(pad(band.allowed((queries, keys), attn_mask.device), (0, extra), value=True))
        masks.append(band)
        if _is_nothing_but_causal(attn_mask):
            attn_mask = None
    if key_padding_mask is not None:
        table = (pad(key_padding_mask, (0, extra)) if extra else key_padding_mask).view(batch, keys + extra)
        if table.is_floating_point():
            biases.append(table[:, None, None])
        else:
            masks.append(padding(~table))
    if attn_mask is not None:
        lead = (1, 1) if attn_mask.dim() == 2 else (batch, heads)
        table = (pad(attn_mask, (0, extra)) if extra else attn_mask).view(*lead, queries, keys + extra)
        if table.is_floating_point():
            biases.append(table)
        else:
            masks.append(dense(~table))
    mask = reduce(and_, masks) if masks else None
    return mask, reduce(add, biases) if biases else None


def _check_mask(name: str, mask: Tensor | None, shapes: list[tuple[int, ...]]) -> None:
    if mask is None:
        return
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError(
            f"{name} must be bool (True hides) or floating (added to the scores), got {got}: use .bool()"
        )
    if tuple(mask.shape) not in shapes:
        raise ArgumentError(f"{name} must be {' or '.join(map(str, shapes))}, got {tuple(mask.shape)}")


def _is_nothing_but_causal(attn_mask: Tensor) -> bool:
    """Return True if the mask equals the causal one, which needs no table; False where reading values is not free."""
    if attn_mask.dim() != 2 or attn_mask.requires_grad or not is_eager_on_cpu(attn_mask):
        return False
    later = torch.ones(attn_mask.shape, dtype=torch.bool).triu(1)
    if attn_mask.dtype == torch.bool:
        return torch.equal(attn_mask, later)
    return torch.equal(attn_mask, torch.zeros_like(attn_mask).masked_fill(later, -torch.inf))


class _Differentiable(torch.autograd.Function):
    """A function that gives observed weights P the gradient of softmax, dS_ij = P_ij (dP_ij - sum_m P_im dP_im).

    Observed weights have no gradient, but those of torch's layer do. The gradient is computed only if a loss needs it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        return weights.view_as(weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weights, query, key, bias, ctx.scale = inputs
        ctx.save_for_backward(weights, query, key, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, query, key, bias = ctx.saved_tensors
        scores = weights * (gradients[0] - (weights * gradients[0]).sum(-1, keepdim=True))
        # Masked rows may be NaN, and 0 * NaN is NaN; where a NaN is visible, the weights are NaN already.
        of_query = ctx.scale * scores @ key.nan_to_num(0, 0, 0).to(scores.dtype)
        of_key = ctx.scale * scores.mT @ query.nan_to_num(0, 0, 0).to(scores.dtype)
        of_bias = None if bias is None else scores.sum_to_size(bias.shape).to(bias.dtype)
        return None, of_query.to(query.dtype), of_key.to(key.dtype), of_bias, None


def _with_gradient(weights: Tensor | None, query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    found = weights
    if any(x is not None and x.requires_grad for x in (query, key, bias)):  # saves 30 microseconds
        found = _Differentiable.apply(weights, query, key, bias, scale)  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


def convert(model: Model, *, back: bool = False) -> Model:
    """Convert every torch.nn.MultiheadAttention inside a model, or the model itself, to compute by `regard.attention`.

    Each becomes a `TorchMultiheadAttention` in place: the same module object with the same parameters and another
    class, so that optimizers, hooks, tied weights, devices, modes and the keys of the state dict do not change.
    torch.nn.Transformer and its layers work as before, with one path for training and evaluation. ``back=True`` undoes
    the conversion. Subclasses of torch's layer, which may compute something else, are skipped with a warning.

    Returns the model. Raises ArgumentError for an object that is not a module or has no such layer inside.

    >>> model = convert(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)).eval()
    >>> type(model.layers[1].self_attn).__name__
    'TorchMultiheadAttention'
    >>> type(convert(model, back=True).layers[1].self_attn).__name__
    'MultiheadAttention'
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    old, new = nn.MultiheadAttention, TorchMultiheadAttention
    if back:
        old, new = new, old
    found = [
        (name or "itself", layer) for name, layer in model.named_modules() if isinstance(layer, nn.MultiheadAttention)
    ]
    if not found:
        raise ArgumentError(
            f"expected a model with torch.nn.MultiheadAttention inside, found none in {type(model).__name__}"
        )
    for name, layer in found:
        if type(layer) is old:
            layer.__class__ = new
            layer._qkv_same_embed_dim = back and layer.in_proj_weight is not None
        elif isinstance(layer, TorchMultiheadAttention) is back:
            warnings.warn(f"{name} is left alone: {type(layer).__name__} is a subclass of {old.__name__}", stacklevel=2)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            _switch_nested(encoder)
    return model


def _switch_nested(encoder: nn.TransformerEncoder) -> None:
    """Prevent torch's encoder from packing padded input into nested tensors, which regard's layers do not support."""
    if any(isinstance(layer, TorchMultiheadAttention) for layer in encoder.modules()):
        encoder.__dict__.setdefault("_nested_for_torch", encoder.use_nested_tensor)
        encoder.use_nested_tensor = False
    else:
        encoder.use_nested_tensor = encoder.__dict__.pop("_nested_for_torch", encoder.use_nested_tensor)


def take_torch_state(state: dict[str, Any], prefix: str) -> None:
    """Rename the entries of a torch.nn.MultiheadAttention in a state dict to those of `MultiHeadAttention`.

    A module calls this in ``_load_from_state_dict``, where the dict is a copy. Other dicts do not change.
    Raises UnsupportedError for ``bias_k`` and ``bias_v``, which `MultiHeadAttention` does not have.
    """
    if prefix + "bias_k" in state or prefix + "bias_v" in state:
        raise UnsupportedError(
            "the state has bias_k and bias_v (add_bias_kv=True), which MultiHeadAttention does not have: load it into "
            "regard.nn.TorchMultiheadAttention"
        )
    for kind in ("weight", "bias"):
        packed = state.pop(f"{prefix}in_proj_{kind}", None)
        for k, name in enumerate("qkv"):
            separate = state.pop(f"{prefix}{name}_proj_{kind}", None)
            part = separate if packed is None else packed.chunk(3)[k].clone()
            if part is not None:
                state[f"{prefix}{name}_proj.{kind}"] = part

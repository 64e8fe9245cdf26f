"""The mask as an object: composition, selection, conversion to a table, and drawing. ``True`` means *may attend*.

A `Mask` stores its structure (bands along the diagonal, keys that are padding, explicit tables) and becomes a tensor
only for a kernel that needs one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard._kernels.mask_parts import MaskParts
from regard.errors import ArgumentError
from regard.functional.axes import broadcast

__all__ = ["Band", "Mask", "size_of"]

_DRAWN = 4  # how many tables of a batch a drawing shows
_DRAWN_SIZE = 6  # its queries and keys, if no part of the mask has a size


class Band(NamedTuple):
    """The keys j of query i with ``i + offset - before < j < i + offset + after``; before=None: no lower bound."""

    before: int | None
    after: int
    offset: int | None  # None: Tk - Tq, the last query is aligned with the last key

    def limits(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the first key of each query and the end behind its last, two (Tq,) tensors within 0..Tk."""
        own = torch.arange(queries, device=device) + (keys - queries if self.offset is None else self.offset)
        first = torch.zeros_like(own) if self.before is None else (own - self.before + 1).clamp(0, keys)
        return first, (own + self.after).clamp(0, keys)

    def __str__(self) -> str:
        size = [] if self.before is None else [str(self.before)]
        offset = [] if self.offset is None else [f"offset={self.offset}"]
        return f"{'window' if size else 'causal'}({', '.join(size + offset)})"


@dataclass(frozen=True, eq=False)
class Mask:
    """The (query, key) pairs that may attend: built by `causal`, `window`, `padding`, `dense`, composed by ``&``.

    >>> from regard import causal, window
    >>> print(causal() & window(2))
    causal() & window(2)
    ■ · · · · ·
    ■ ■ · · · ·
    · ■ ■ · · ·
    · · ■ ■ · ·
    · · · ■ ■ ·
    · · · · ■ ■
    """

    bands: tuple[Band, ...] = ()
    keeps: tuple[Tensor, ...] = ()  # (B, Tk) bool
    lengths: tuple[Tensor, ...] = ()  # (B,) integer
    tables: tuple[Tensor, ...] = ()  # (Tq, Tk) or the query's rank, bool

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise ArgumentError(
                f"a mask composes with masks, got {type(other).__name__}: wrap it as padding(keep) for (B, Tk) "
                "or dense(table) for (Tq, Tk)"
            )
        return Mask(
            self.bands + tuple(band for band in other.bands if band not in self.bands),
            self.keeps + other.keeps,
            self.lengths + other.lengths,
            self.tables + other.tables,
        )

    __rand__ = __and__

    def allowed(self, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Return the mask as a bool tensor of the scores' ``shape`` (..., Tq, Tk), a view where that saves memory.

        Raises ArgumentError where the mask does not fit the shape.

        >>> from regard import causal
        >>> causal().allowed((2, 3)).int().tolist()  # the last query may attend to every key
        [[1, 1, 0], [1, 1, 1]]
        """
        device = torch.device(device)
        self.check(shape, device)
        return self.table(shape, device).expand(*shape)

    def check(self, shape: Sequence[int], device: torch.device) -> None:
        """Raise ArgumentError unless the mask fits scores of this shape on this device."""
        for keep in self.keeps:
            _check_padding("keep", keep, shape, (shape[0], shape[-1]), device)
        for length in self.lengths:
            _check_padding("lengths", length, shape, (shape[0],), device)
        for table in self.tables:
            _check_table(table, shape, device)

    def table(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return the mask as a bool tensor that broadcasts to scores of this shape, as small as it can be."""
        parts = []
        for band in self.bands:
            at = torch.arange(shape[-1], device=device)
            first, end = band.limits(shape[-2], shape[-1], device)
            parts.append(at < end[:, None])
            if band.before is not None:
                parts.append(at >= first[:, None])
        kept = self.kept_keys(shape, device)
        if kept is not None:
            parts.append(kept.unsqueeze(-2))
        parts.extend(self.tables)
        if not parts:
            return torch.ones((1, 1), dtype=torch.bool, device=device)
        table = parts[0]
        for part in parts[1:]:
            table = table & part
        return table

    def kept_keys(self, shape: Sequence[int], device: torch.device) -> Tensor | None:
        """Return the keys that are not padding, (B, 1, ..., Tk) bool, of one axis less than the scores, or None."""
        kept = None
        for keep in self.keeps:
            kept = keep if kept is None else kept & keep
        for length in self.lengths:
            keep = torch.arange(shape[-1], device=device) < length[:, None]
            kept = keep if kept is None else kept & keep
        return None if kept is None else kept.view(kept.shape[0], *[1] * (len(shape) - 3), kept.shape[1])

    def parts(self, shape: Sequence[int], device: torch.device) -> MaskParts:
        """Return the mask as kernels take it, with no tensor of the size of the scores unless it has tables."""
        queries, keys = shape[-2], shape[-1]
        low, high = -queries, keys
        for k, (before, after, offset) in enumerate(self.bands):
            own = keys - queries if offset is None else offset
            high = own + after if k == 0 else min(high, own + after)
            if before is not None:
                low = max(low, own - before + 1)
        keep, table = self.kept_keys(shape, device), None
        for other in self.tables:
            table = other if table is None else table & other
        if keep is not None and len(shape) == 3:  # the first axis, to which padding belongs, is that of the heads
            table = keep.unsqueeze(-2) if table is None else table & keep.unsqueeze(-2)
            keep = None
        return MaskParts(low, high, None if keep is None else keep.reshape(keep.shape[0], keys), table)

    @property
    def has_padding(self) -> bool:
        """Return whether some keys are hidden as padding."""
        return bool(self.keeps or self.lengths)

    @property
    def is_banded(self) -> bool:
        """Return whether the mask consists of bands along the diagonal alone."""
        return not (self.has_padding or self.tables)

    @property
    def is_causal(self) -> bool:
        """Return whether the mask hides later keys, possibly among others."""
        return any(band.before is None and band.after == 1 for band in self.bands)

    @property
    def is_bottom_right(self) -> bool:
        """Return whether a band aligns the last query with the last key."""
        return any(band.offset is None for band in self.bands)

    def is_causal_from_start(self, queries: int, keys: int) -> bool:
        """Return whether the mask is exactly j <= i, the one causal mask that torch's kernels support."""
        if len(self.bands) != 1 or not self.is_banded:
            return False
        before, after, offset = self.bands[0]
        if before is not None or after != 1:
            return False
        # A plain bool, also where sizes are symbols.
        return True if (queries == keys if offset is None else offset == 0) else False  # noqa: SIM210

    def to(self, device: torch.device | str) -> Mask:
        """Return the mask with its tensors on this device."""
        return Mask(
            self.bands, *(tuple(x.to(device) for x in part) for part in (self.keeps, self.lengths, self.tables))
        )

    def of_first_keys(self, keys: int, total: int) -> Mask:
        """Return the mask without the keys behind the first ``keys`` of ``total``, such as empty slots of a cache.

        A band without an offset then aligns the last query with the last of these keys.

        >>> from regard import padding
        >>> padding(torch.tensor([[False, True, True, True]])).of_first_keys(3, 4).draw(1)
        '· ■ ■'
        """
        return Mask(
            self.bands,
            tuple(keep[:, :keys] for keep in self.keeps),
            tuple(length.clamp(max=keys) for length in self.lengths),
            tuple(table[..., :keys] if table.shape[-1] == total else table for table in self.tables),
        )

    def of_last_keys(self, keys: int, total: int) -> Mask:
        """Return the mask of the last ``keys`` keys, of a mask for ``total`` keys.

        >>> from regard import causal
        >>> print(causal(offset=3).of_last_keys(2, 5).draw(2, 2))
        ■ ·
        ■ ■
        """
        first = total - keys
        return Mask(
            tuple(band if band.offset is None else band._replace(offset=band.offset - first) for band in self.bands),
            tuple(keep[:, first:] for keep in self.keeps),
            tuple((length - first).clamp(min=0) for length in self.lengths),
            tuple(table[..., first:] if table.shape[-1] == total else table for table in self.tables),
        )

    def of_examples(self, rows: Tensor) -> Mask:
        """Return the mask of these examples of a batch, in this order.

        >>> from regard import padding
        >>> padding(lengths=[3, 1]).of_examples(torch.tensor([1])).draw(1, 3)
        '■ · ·'
        """
        return Mask(
            self.bands,
            tuple(keep.index_select(0, rows) for keep in self.keeps),
            tuple(length.index_select(0, rows) for length in self.lengths),
            tuple(t.index_select(0, rows) if t.dim() > 2 and t.shape[0] > 1 else t for t in self.tables),
        )

    def of_heads(self, heads: Tensor, num_heads: int) -> Mask:
        """Return the mask of these heads of ``num_heads``, in this order; a table without a head axis does not change.

        >>> from regard import dense
        >>> table = torch.tensor([[[True, False]], [[False, True]]])
        >>> dense(table).of_heads(torch.tensor([1]), 2).draw()
        '· ■'
        """
        return self.map_tables(lambda table: table.index_select(-3, heads) if table.shape[-3] == num_heads else table)

    def map_tables(self, change: Callable[[Tensor], Tensor]) -> Mask:
        """Return the mask with all tables changed but those of two axes, (Tq, Tk)."""
        return replace(self, tables=tuple(change(table) if table.dim() > 2 else table for table in self.tables))

    def in_four_axes(self, shape: Sequence[int], device: torch.device) -> Mask:
        """Return the mask for scores of this shape that are brought to four axes, (L, heads, Tq, Tk)."""
        if len(shape) == 4 or self.is_banded:
            return self
        table = broadcast(replace(self, bands=()).table(shape, device), shape)
        return Mask(self.bands, tables=(table,))

    def reaches(self, marked: Tensor, shape: Sequence[int]) -> Tensor:
        """Return whether each query may attend to one of the ``marked`` keys, (..., Tk) bool: (..., Tq) or (..., 1).

        Without tables the keys of a query are consecutive, so that two prefix sums suffice, in linear memory.
        """
        if self.tables:
            return (self.table(shape, marked.device) & marked.unsqueeze(-2)).any(-1)
        kept = self.kept_keys(shape, marked.device)
        if kept is not None:
            marked = marked & kept
        if not self.bands:
            return marked.any(-1, keepdim=True)
        limits = [band.limits(shape[-2], shape[-1], marked.device) for band in self.bands]
        first, end = limits[0]
        for other_first, other_end in limits[1:]:
            first, end = torch.maximum(first, other_first), torch.minimum(end, other_end)
        before = torch.nn.functional.pad(marked.cumsum(-1), (1, 0))
        return before.index_select(-1, end) > before.index_select(-1, first)

    def draw(self, queries: int | None = None, keys: int | None = None) -> str:
        """Return the mask as text, one line per query: ■ may attend, · may not; one drawing per entry of leading axes.

        >>> from regard import causal
        >>> print(causal().draw(2, 5))  # two new queries, three keys from a cache
        ■ ■ ■ ■ ·
        ■ ■ ■ ■ ■
        """
        lead, queries, keys = self._natural_shape(queries, keys)
        allowed = self.allowed((*lead, queries, keys))
        tables = []
        for index in itertools.islice(itertools.product(*map(range, lead)), _DRAWN):
            rows = allowed[index].tolist()
            tables.append("\n".join(" ".join("■" if may else "·" for may in row) for row in rows))
        more = allowed[..., 0, 0].numel() - len(tables) if queries and keys else 0
        return "\n\n".join([*tables, f"and {more} more"] if more else tables)

    def _natural_shape(self, queries: int | None, keys: int | None) -> tuple[tuple[int, ...], int, int]:
        """Return the leading axes, Tq and Tk of a drawing that the caller did not specify."""
        lead: tuple[int, ...] = ()
        found_queries, found_keys = 0, 0
        for table in self.tables:
            lead = lead or tuple(table.shape[:-2])
            found_queries, found_keys = max(found_queries, table.shape[-2]), max(found_keys, table.shape[-1])
        for keep in self.keeps:
            lead, found_keys = lead or (keep.shape[0],), max(found_keys, keep.shape[1])
        for length in self.lengths:
            lead, found_keys = lead or (length.shape[0],), max(found_keys, *length.tolist())
        keys = keys if keys is not None else found_keys or queries or _DRAWN_SIZE
        return lead, queries if queries is not None else found_queries or keys, keys

    def __repr__(self) -> str:
        names = [str(band) for band in self.bands]
        names += [f"padding(keep={size_of(keep)})" for keep in self.keeps]
        names += [f"padding(lengths={size_of(length)})" for length in self.lengths]
        names += [f"dense({size_of(table)})" for table in self.tables]
        return " & ".join(names) or "Mask()"

    def __str__(self) -> str:
        return f"{self!r}\n{self.draw()}"


def size_of(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "scalar"


def _check_padding(
    name: str, tensor: Tensor, shape: Sequence[int], expected: tuple[int, ...], device: torch.device
) -> None:
    if len(shape) < 3:
        raise ArgumentError("padding needs a query with a batch axis (3-D or more), got 2-D: use dense(table)")
    if tuple(tensor.shape) != expected:
        axes = "(B, Tk)" if name == "keep" else "(B,)"
        raise ArgumentError(f"padding {name} must be {axes} = {expected}, got {tuple(tensor.shape)}")
    _check_device(f"padding {name}", tensor, device)


def _check_table(table: Tensor, shape: Sequence[int], device: torch.device) -> None:
    full = len(table.shape) == len(shape)
    fits = full and all(size in (1, there) for size, there in zip(table.shape, shape, strict=True))
    if not fits and tuple(table.shape) != tuple(shape[-2:]):
        raise ArgumentError(
            f"mask table must be (Tq, Tk) = {tuple(shape[-2:])} or {tuple(shape)} with sizes 1 or equal, "
            f"got {tuple(table.shape)}"
        )
    _check_device("mask table", table, device)


def _check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ArgumentError(f"{name} is on {tensor.device} and the query on {device}: move it with .to(query.device)")

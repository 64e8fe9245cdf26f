"""The encoder of words in their context that taggers and classifiers share: a recurrence, or a transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import nn

from regard.functional import padding
from regard.models.pretrained import Pretrained
from regard.nn import BlockConfig, TransformerEncoder
from regard.nn._parts import as_pair
from regard.nn._recurrent import run_bidirectional
from regard.positions import Sinusoidal

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

    from regard.functional import Observation, Observe

__all__ = ["TextModel"]


class TextModel(Pretrained):
    """A model that encodes the words of a text, each in the context of the others.

    h = RNN(x) in both directions, or h = Transformer(norm(W_x x + b_x) + P) with sinusoids P and pre-norm, or h = x.
    The modules are attributes of the model: ``encoder``, ``projection`` and ``positions`` are names in saved models.
    """

    encoder: nn.GRU | nn.LSTM | TransformerEncoder | None
    projection: nn.Sequential
    positions: Sinusoidal

    def _make_encoder(
        self,
        kind: Literal["none", "recurrent", "transformer"],
        recurrence: type[nn.GRU] | type[nn.LSTM],
        input_dim: int,
        hidden_dim: int,
        *,
        layers: int,
        heads: int,
        dropout: float,
    ) -> None:
        """Make the modules; half of ``hidden_dim`` is for each direction of the recurrence."""
        self.encoder = None
        if kind == "recurrent":
            between = dropout if layers > 1 else 0.0
            self.encoder = recurrence(
                input_dim, hidden_dim // 2, layers, batch_first=True, bidirectional=True, dropout=between
            )
        elif kind == "transformer":
            # Without the norm words would be small beside the sinusoids
            self.projection = nn.Sequential(nn.Linear(input_dim, hidden_dim), nn.LayerNorm(hidden_dim))
            self.positions = Sinusoidal(hidden_dim)
            block = BlockConfig(hidden_dim, heads, 2 * hidden_dim, dropout=dropout, norm_first=True)
            self.encoder = TransformerEncoder(block, layers)

    def _encode(
        self, x: Float[Tensor, "B T E"], lengths: Int64[Tensor, " B"], observe: Observe | None = None
    ) -> tuple[Float[Tensor, "B T H"], tuple[Observation, ...] | None]:
        """Return the states of the words, and with ``observe`` the observation of each layer."""
        if not isinstance(self.encoder, TransformerEncoder):
            return x if self.encoder is None else run_bidirectional(self.encoder, x, lengths)[0], None
        embedded = self.positions(self.projection(x))
        return as_pair(self.encoder(embedded, mask=padding(lengths=lengths), observe=observe))

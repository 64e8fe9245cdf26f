"""Position encodings: what tells attention, which knows no order, where each token stands.

An encoding is fixed by hand (`Sinusoidal`) or learned (`Learned`), and is either added to the embeddings or
concatenated to them: aⁱ + eⁱ, or [aⁱ; eⁱ].
"""

from __future__ import annotations

from regard.positions._learned import Learned
from regard.positions._sinusoidal import Sinusoidal, sinusoidal

__all__ = ["Learned", "Sinusoidal", "sinusoidal"]

"""Position encodings: what tells attention, which knows no order, where each token stands.

Some join the embeddings, added or concatenated, aⁱ + eⁱ or [aⁱ; eⁱ]: `Sinusoidal` is fixed by hand, `Learned` is not.
Others act within attention, and know distances alone: `Rotary` turns queries and keys, `ALiBi` and `T5Bias` add to
the scores, `Shaw` to keys and values. These are `Relative`, and go to a layer of attention.
"""

from __future__ import annotations

from regard.positions._alibi import ALiBi
from regard.positions._learned import Learned
from regard.positions._relative import Relative
from regard.positions._rotary import Rotary
from regard.positions._scaling import LinearScaling, Llama3Scaling, NTKScaling, Scaling, YarnScaling
from regard.positions._shaw import Shaw
from regard.positions._sinusoidal import Sinusoidal, sinusoidal
from regard.positions._t5 import T5Bias

__all__ = [
    "ALiBi",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "NTKScaling",
    "Relative",
    "Rotary",
    "Scaling",
    "Shaw",
    "Sinusoidal",
    "T5Bias",
    "YarnScaling",
    "sinusoidal",
]

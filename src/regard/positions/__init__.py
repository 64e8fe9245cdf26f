"""Position encodings: what tells attention, which knows no order, where each token stands.

Some join the embeddings, added or concatenated, aⁱ + eⁱ or [aⁱ; eⁱ]: `Sinusoidal` is fixed by hand, `Learned` is not.
Others act within attention, and know distances alone: `Rotary` turns queries and keys, `ALiBi` and `T5Bias` add to
the scores, `Shaw` to keys and values. These are `Relative`, and go to a layer of attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.positions._alibi import ALiBi
from regard.positions._learned import Learned
from regard.positions._relative import Relative
from regard.positions._rotary import Rotary
from regard.positions._scaling import LinearScaling, Llama3Scaling, NTKScaling, Scaling, YarnScaling
from regard.positions._shaw import Shaw
from regard.positions._sinusoidal import Sinusoidal, sinusoidal
from regard.positions._t5 import T5Bias

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "BY_NAME",
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

#: The encodings by the names that configs and commands have for them.
BY_NAME: dict[str, type[nn.Module]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "alibi": ALiBi,
    "t5": T5Bias,
    "shaw": Shaw,
}

"""Position encodings, without which attention does not depend on the order of its inputs.

Some are added to the embeddings or concatenated with them, aⁱ + eⁱ or [aⁱ; eⁱ]: `Sinusoidal` is fixed, `Learned` has
parameters. Others act within attention and depend on distances only: `Rotary` rotates queries and keys, `ALiBi` and
`T5Bias` add to the scores, `Shaw` adds to keys and values. These are `Relative`, and are given to an attention layer.
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


def __dir__() -> list[str]:
    return __all__


#: The encodings by the names that configs and commands have for them.
BY_NAME: dict[str, type[nn.Module]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "alibi": ALiBi,
    "t5": T5Bias,
    "shaw": Shaw,
}

"""Saving and loading of models, in folders and on the Hugging Face Hub: config.json and model.safetensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from regard.errors import ArgumentError, RegardError

try:
    from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file
except ModuleNotFoundError as error:
    raise RegardError(f"models need {error.name}, which is not installed: pip install 'regard[train]'") from error

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Pretrained", "plain_weights"]

_WEIGHTS = "model.safetensors"


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict on the CPU under the model's own names, also of a compiled or `DataParallel` model."""
    return {
        # A copy, as safetensors rejects tensors that share memory, such as a table that all layers share
        name.replace("_orig_mod.", "").removeprefix("module."): tensor.to("cpu", copy=True).contiguous()
        for name, tensor in model.state_dict().items()
    }


class Pretrained(nn.Module, PyTorchModelHubMixin, library_name="regard", tags=["attention"]):
    """The base of models that are made from one ``config``: `save_pretrained`, `push_to_hub` and `from_pretrained`.

    config.json holds the fields of the config, model.safetensors the weights under the model's own names. A loaded
    model is in eval mode. A model inside `torch.nn.DataParallel` is saved as its ``module``.

    Errors: `ArgumentError` from `from_pretrained` if the folder lacks a file or holds another kind of model.
    """

    config_class: type  # a dataclass
    config: Any

    def extra_repr(self) -> str:
        return repr(self.config)

    def _save_pretrained(self, save_directory: Path) -> None:
        save_file(plain_weights(self), save_directory / _WEIGHTS, metadata={"format": "pt"})

    @classmethod
    def _from_pretrained(  # type: ignore[override]  # other options would have no effect, so they are not accepted
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        config: Any = None,
        map_location: str = "cpu",
    ) -> Self:
        path = os.path.join(model_id, _WEIGHTS)
        if not os.path.isdir(model_id):
            path = hf_hub_download(
                model_id,
                _WEIGHTS,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
            )
        try:
            if config is None:
                raise ArgumentError("there is no config.json")
            sizes = config if isinstance(config, cls.config_class) else cls.config_class(**config)
            model = cls(sizes).to(map_location)
            model.load_state_dict(load_file(path, device=map_location))
        except (TypeError, ValueError, RuntimeError, SafetensorError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ArgumentError(
                f"{model_id}: expected config.json and {_WEIGHTS} of a {cls.__name__}, as save_pretrained writes them "
                f"({reason}); open a run directory with regard.tasks.open_run"
            ) from error
        return model.eval()

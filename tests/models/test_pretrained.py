"""Models as folders and on the Hub: what is saved comes back bit for bit, and nothing asks the network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file

from regard.errors import ArgumentError
from regard.models import (
    Config,
    RecurrentConfig,
    RecurrentSeq2Seq,
    Seq2Seq,
    TransformerConfig,
    TransformerSeq2Seq,
    pretrained,
)

SIZES = {"dim": 12, "heads": 2, "feedforward": 7, "encoder_layers": 2, "decoder_layers": 2, "max_length": 9}
CONFIGS: dict[str, Config] = {
    "recurrent": RecurrentConfig(11, 13, 5, 6, 2, cell="lstm", score="general"),
    "without attention": RecurrentConfig(11, 13, 5, 6, score=None),
    **{
        positions: TransformerConfig(11, 13, positions=positions, norm_first=positions != "t5", **SIZES)
        for positions in ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw")
    },
    "shared embeddings": TransformerConfig(13, 13, shared_embeddings=True, **SIZES),
}
every_model = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def new(config: Config) -> Seq2Seq:
    torch.manual_seed(0)
    return config.build().eval()


def answer(model: Seq2Seq) -> torch.Tensor:
    source, target = torch.tensor([[4, 5, 6, 7], [8, 9, 0, 0]]), torch.tensor([[2, 4, 5], [2, 6, 0]])
    logits: torch.Tensor = model(source, torch.tensor([4, 2]), target)
    return logits


@every_model
def test_what_is_saved_comes_back_bit_for_bit(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = new(config)
    model.train().save_pretrained(tmp_path / "deep" / "model")
    again = type(model).from_pretrained(tmp_path / "deep" / "model")
    assert again.config == config
    assert not again.training
    assert torch.equal(answer(again), answer(model.eval()))
    assert {path.name for path in (tmp_path / "deep" / "model").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    again.save_pretrained(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "deep" / "model" / name).read_bytes()
    assert capsys.readouterr() == ("", "")


@every_model
@pytest.mark.parametrize("wrapper", ["compiled", "a part compiled", "parallel"])
def test_c1_a_wrapped_model_is_saved_under_its_own_names(config: Config, wrapper: str, tmp_path: Path) -> None:
    model = new(config)
    expected, names = answer(model), set(model.state_dict())
    if wrapper == "a part compiled":
        model.encoder = torch.compile(model.encoder, backend="eager")
        model.save_pretrained(tmp_path)
    elif wrapper == "compiled":
        torch.compile(model, backend="eager").save_pretrained(tmp_path)
    else:
        save_file(pretrained.plain_weights(torch.nn.DataParallel(model)), tmp_path / "wrapped.safetensors")
        torch.nn.DataParallel(model).module.save_pretrained(tmp_path)
        assert set(load_file(tmp_path / "wrapped.safetensors")) == names
    assert set(load_file(tmp_path / "model.safetensors")) == names
    assert torch.equal(answer(type(model).from_pretrained(tmp_path)), expected)


@every_model
def test_config_holds_the_fields_of_the_config_and_nothing_else(config: Config, tmp_path: Path) -> None:
    new(config).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert type(config)(**written) == config


def refused(kind: type[Seq2Seq], folder: Path, match: str) -> None:
    with pytest.raises(ArgumentError, match=match) as caught:
        kind.from_pretrained(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder}: expected config.json and model.safetensors of a {kind.__name__}")
    assert len(message.splitlines()) == 1


def test_what_is_of_another_kind_or_damaged_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    new(CONFIGS["recurrent"]).save_pretrained(folder)
    refused(TransformerSeq2Seq, folder, "cell|unexpected")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "extra": torch.ones(1)}, folder / "model.safetensors")
    refused(RecurrentSeq2Seq, folder, "extra")
    lacking = {name: tensor for name, tensor in tensors.items() if name != "output.bias"}
    save_file(lacking, folder / "model.safetensors")
    refused(RecurrentSeq2Seq, folder, r"output\.bias")
    (folder / "model.safetensors").write_bytes(b"{")
    refused(RecurrentSeq2Seq, folder, "header|too small|Header")
    (folder / "model.safetensors").unlink()
    refused(RecurrentSeq2Seq, folder, r"model\.safetensors")
    (folder / "config.json").write_text('{"source_size": 11, "target_size": 13, "hidden_dim": 7}')
    refused(RecurrentSeq2Seq, folder, "hidden_dim: expected an even number")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    refused(RecurrentSeq2Seq, tmp_path, "there is no config")


def test_a_name_is_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = new(CONFIGS["rotary"])
    model.save_pretrained(tmp_path)
    asked: list[dict[str, Any]] = []

    def download(repo_id: str, filename: str, **options: Any) -> str:
        asked.append({"repo_id": repo_id, "filename": filename, **options})
        return str(tmp_path / filename)

    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    monkeypatch.setattr(pretrained, "hf_hub_download", download)
    again = TransformerSeq2Seq.from_pretrained("someone/model", revision="v2", cache_dir="there")
    assert torch.equal(answer(again), answer(model))
    assert [call["filename"] for call in asked] == ["config.json", "model.safetensors"]
    for call in asked:
        assert (call["repo_id"], call["revision"], call["cache_dir"]) == ("someone/model", "v2", "there")


def test_pushing_uploads_what_saving_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: dict[str, bytes] = {}

    def create(self: HfApi, repo_id: str, **_: Any) -> Any:
        return type("Url", (), {"repo_id": repo_id})

    def upload(self: HfApi, *, folder_path: Path, repo_id: str, **_: Any) -> str:
        uploaded.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()})
        return f"commit of {repo_id}"

    monkeypatch.setattr(HfApi, "create_repo", create)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    assert new(CONFIGS["recurrent"]).push_to_hub("someone/model") == "commit of someone/model"
    assert set(uploaded) == {"README.md", "config.json", "model.safetensors"}
    assert b"library_name: regard" in uploaded["README.md"]

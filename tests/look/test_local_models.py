"""Language models in local folders: opened, run and watched, and compared with the eager attention of transformers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from local_models import TEXT
from regard.errors import ArgumentError, RegardError
from regard.look.local_models import LocalModel, WatchedText, is_model, passages

pytest_plugins = ["local_model_fixtures"]
EAGER: dict[str, Any] = {"local_files_only": True, "attn_implementation": "eager"}


@pytest.fixture(scope="module")
def opened(folders: dict[str, Path]) -> dict[str, LocalModel]:
    return {kind: LocalModel.open(folder) for kind, folder in folders.items()}


def distances(weights: torch.Tensor) -> torch.Tensor:
    places = torch.arange(weights.shape[-1])
    return (weights * (places[:, None] - places).abs()).sum(-1)


def check(watched: WatchedText, name: str, weights: torch.Tensor) -> None:
    """Compare the layer's summary with matrices (1, H, Tq, Tk)."""
    found = [one for one in watched.record.summary() if one.layer == name]
    assert len(found) == weights.shape[1]
    for head, one in enumerate(found):
        matrix = weights[0, head].double()
        assert one.first == pytest.approx(matrix[:, 0].mean().item(), abs=1e-4)
        assert one.entropy == pytest.approx(torch.special.entr(matrix).sum(-1).mean().item(), abs=1e-4)
        if watched.record[name].cross:
            assert math.isnan(one.previous)
            continue
        assert one.itself == pytest.approx(matrix.diagonal().mean().item(), abs=1e-4)
        assert one.previous == pytest.approx(matrix.diagonal(-1).sum().item() / len(matrix), abs=1e-4)
        assert one.distance == pytest.approx(distances(matrix).mean().item(), abs=1e-4)


def test_an_encoder_reads(folders: dict[str, Path], opened: dict[str, LocalModel]) -> None:
    local = opened["encoder"]
    watched = local.watch(TEXT)
    assert (watched.answer, watched.passages, watched.cut) == (None, [], None)
    model = AutoModel.from_pretrained(folders["encoder"], **EAGER)
    with torch.inference_mode():
        attentions = model(**local.tokenizer(TEXT, return_tensors="pt"), output_attentions=True).attentions
    for layer, weights in zip(watched.record.layers, attentions, strict=True):
        check(watched, layer.name, weights)


def test_a_causal_model_goes_on_and_its_rows_are_those_of_the_answer(
    folders: dict[str, Path], opened: dict[str, LocalModel]
) -> None:
    local = opened["causal"]
    watched = local.watch(TEXT, generate=7)
    model = AutoModelForCausalLM.from_pretrained(folders["causal"], **EAGER)
    prompt = local.tokenizer(TEXT, return_tensors="pt")
    begin = prompt["input_ids"].shape[1]
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=7, do_sample=False)
        attentions = model(ids, output_attentions=True).attentions
    assert torch.equal(watched.record.inputs["input_ids"], ids)
    assert watched.answer == local.tokenizer.decode(ids[0, begin:], skip_special_tokens=True)
    for layer, weights in zip(watched.record.layers, attentions, strict=True):
        check(watched, layer.name, weights)
    parts = ["(the first token)", *TEXT.split("\n\n"), "(the answer itself)"]
    assert [passage.text for passage in watched.passages] == parts
    assert watched.passages[0].tokens == slice(0, 1)
    assert watched.passages[1].tokens.start == 1
    assert sum(passage.share for passage in watched.passages) == pytest.approx(1, abs=1e-5)
    rows = torch.stack([weights[0, :, begin - 1 : -1] for weights in attentions]).mean((0, 1, 2))
    for passage in watched.passages:
        assert passage.share == pytest.approx(rows[passage.tokens].sum().item(), abs=1e-5)
    assert local.watch(TEXT).answer is None


def test_the_rows_of_a_seq2seq_model_are_those_of_the_hypothesis_that_won(
    folders: dict[str, Path], opened: dict[str, LocalModel]
) -> None:
    local = opened["seq2seq"]
    watched = local.watch(TEXT)
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["seq2seq"], **EAGER)
    with torch.inference_mode():
        found = model.generate(
            **local.tokenizer(TEXT, return_tensors="pt"), output_attentions=True, return_dict_in_generate=True
        )
    assert torch.equal(watched.record.inputs["decoder_input_ids"], found.sequences[:, :-1])
    assert watched.tokens == {"answer": local.tokenizer.convert_ids_to_tokens(found.sequences[0, 1:])}
    assert watched.answer == local.tokenizer.decode(found.sequences[0], skip_special_tokens=True)
    beams = found.beam_indices[0]
    beams = beams[beams >= 0].tolist()
    assert len(set(beams)) > 1, "expected a search in which the winner was not always on the same beam"
    crossing = [layer for layer in watched.record.layers if layer.cross]
    total = torch.zeros(watched.record.layers[0].shape[3])
    for number, layer in enumerate(crossing):
        steps = torch.cat([found.cross_attentions[t][number][beam] for t, beam in enumerate(beams)], 1)[None]
        kept = layer.inputs
        assert kept is not None
        weights = (kept.query @ kept.key.mT / math.sqrt(kept.query.shape[-1])).softmax(-1)
        torch.testing.assert_close(weights, steps, rtol=0, atol=1e-5)
        total += steps.mean((0, 1, 2)) / len(crossing)
    for passage in watched.passages:
        assert passage.share == pytest.approx(total[passage.tokens].sum().item(), abs=1e-5)
    assert len(local.watch(TEXT, generate=3).record.inputs["decoder_input_ids"][0]) == 3


def test_a_long_text_is_cut_to_what_the_model_takes(opened: dict[str, LocalModel]) -> None:
    watched = opened["encoder"].watch(TEXT * 3)
    assert watched.cut is not None
    assert watched.cut[1] == 53 == watched.record.layers[0].shape[3]
    watched = opened["causal"].watch("cat " * 400, generate=7)
    assert watched.cut is not None
    assert watched.cut[1] == 300
    with pytest.raises(ArgumentError, match="expected fewer than the 307 tokens that the model takes, got 307"):
        opened["causal"].watch("cat", generate=307)


@pytest.mark.parametrize("kind", ["encoder", "causal", "seq2seq"])
def test_a_text_without_tokens_is_refused(kind: str, opened: dict[str, LocalModel]) -> None:
    with pytest.raises(ArgumentError, match="expected a text with at least one token, got ''"):
        opened[kind].watch("")


def test_an_encoder_does_not_go_on(opened: dict[str, LocalModel]) -> None:
    with pytest.raises(ArgumentError, match="is an encoder, which does not generate text; remove it"):
        opened["encoder"].watch(TEXT, generate=3)


def test_separators_are_what_stands_between_texts(opened: dict[str, LocalModel]) -> None:
    assert opened["encoder"].separators == [3]
    assert opened["seq2seq"].separators == [2]


def test_what_is_a_model_and_what_is_a_run(folders: dict[str, Path], tmp_path: Path) -> None:
    assert all(is_model(folder) for folder in folders.values())
    assert not is_model(tmp_path)
    assert not is_model(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"format": 1, "task": "seq2seq", "model": {}}))
    assert not is_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert not is_model(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "a.gguf").touch()
    assert is_model(tmp_path)
    assert is_model(tmp_path / "a.gguf")


def test_what_is_missing_is_said(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["encoder"], folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(RegardError, match=r"model: this model cannot be opened: .*model.safetensors"):
        LocalModel.open(folder)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(RegardError, match=r"expected a tokenizer beside the model, such as tokenizer.json, found none"):
        LocalModel.open(folder)
    with pytest.raises(RegardError, match=r"none.gguf: expected a GGUF file, but there is no such file"):
        LocalModel.open(tmp_path / "none.gguf")
    for name in "ab":
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    with pytest.raises(RegardError, match=r"expected one GGUF file, found 2; name one of them, .*a.gguf"):
        LocalModel.open(tmp_path)
    with pytest.raises(RegardError, match=r"a.gguf: this model cannot be opened: "):
        LocalModel.open(tmp_path / "a.gguf")
    monkeypatch.setattr("regard.look.local_models.find_spec", lambda name: None)
    with pytest.raises(RegardError, match=r"needs transformers, which is not installed: pip install 'regard\[hug"):
        LocalModel.open(folder)
    with pytest.raises(RegardError, match="needs transformers and gguf and accelerate, which"):
        LocalModel.open(tmp_path / "a.gguf")


def test_an_unknown_architecture_is_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["encoder"], folder)
    for config in ({"model_type": "unheard-of"}, {"model_type": "x", "auto_map": {"AutoConfig": "evil.Config"}}):
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(RegardError, match="this model cannot be opened: ") as error:
            LocalModel.open(folder)
        assert "\n" not in str(error.value)


def test_passages_are_paragraphs_or_lines_or_sentences() -> None:
    def parts(text: str) -> list[str]:
        places = [(i, i + 1) for i in range(len(text))]
        found = passages(text, places)
        assert [text[tokens].strip() for _, tokens in found] == [part for part, _ in found]
        return [part for part, _ in found]

    assert parts("One.\ntwo.\n\n \nThree.") == ["One.\ntwo.", "Three."]
    assert parts("\n\nOne. Two.\nthree.\n") == ["One. Two.", "three."]
    assert parts("One. Two? 三。四。") == ["One.", "Two?", "三。", "四。"]
    assert parts("one") == ["one"]
    assert parts(" \n\n") == []
    assert passages("One. Two.", [(0, 4), (0, 0)]) == [("One.", slice(0, 1))]

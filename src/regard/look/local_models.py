"""A language model on disk, as Hugging Face or llama.cpp write them: opened, run on a text, and watched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from regard.errors import ArgumentError, RegardError
from regard.look.page.tokens import separator_ids

if TYPE_CHECKING:
    from torch import Tensor

    from regard.look.watch_record import WatchRecord

__all__ = ["Looked", "Passage", "Target", "is_model", "passages"]

Kind = Literal["encoder", "causal", "seq2seq"]

_EXTRA = "pip install 'regard[huggingface]'"
_TOKENIZERS = ("tokenizer*", "vocab*", "merges.txt", "spiece.model", "*.bpe.model", "*.spm")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel")
_ANSWER = 128  # tokens of an answer, where neither the caller nor the model says how many
_FIRST, _ANSWERED = "(the first token)", "(the answer itself)"
_SHORT = 512  # tokens up to which queries and keys are kept for the page
_MEMORY = 2**31
_PARTS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?])\s+|(?<=[。！？])"))


class Passage(NamedTuple):
    """A part of a long text, its tokens, and the share of the answer's weights that fell on it."""

    text: str
    tokens: slice
    share: float


@dataclass(frozen=True)
class Looked:
    """One text as a model went over it.

    ``answer`` is what it went on with, or what it answered; ``passages`` are what that was read from, the mean over
    all heads. ``tokens`` are what a page is to call the rows of alignments. ``cut`` tells, of a text that was longer
    than the model takes, how many tokens it had and was cut to.
    """

    record: WatchRecord
    answer: str | None = None
    passages: list[Passage] = field(default_factory=list)
    tokens: dict[str, list[str]] | None = None
    cut: tuple[int, int] | None = None


def is_model(path: Path) -> bool:
    """Whether this is the folder of a Hugging Face model, or a GGUF file, rather than a run."""
    if path.suffix == ".gguf":
        return True
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return any(path.glob("*.gguf"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "format" not in config and bool({"model_type", "architectures"} & set(config))


@dataclass(frozen=True)
class Target:
    """A model with its tokenizer, ready to be watched.

    ``kind``: an "encoder" reads a text; a "causal" model reads it and may go on; a "seq2seq" model answers it.
    """

    name: str
    kind: Kind
    model: Any
    tokenizer: Any

    @classmethod
    def open(cls, path: Path) -> Target:
        """Open a folder, or a GGUF file, without the network; RegardError says in one line what is missing or wrong."""
        folder, options = _located(path)
        _check_installed("transformers", *(["gguf", "accelerate"] if "gguf_file" in options else []))
        if "gguf_file" not in options and not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
            raise RegardError(
                f"{path}: expected a tokenizer beside the model, such as tokenizer.json, found none; "
                "save it there with tokenizer.save_pretrained(...)"
            )
        import transformers

        with _quiet(), _reading(path):
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            kind = _kind(config, gguf="gguf_file" in options)
            auto = {
                "encoder": transformers.AutoModel,
                "causal": transformers.AutoModelForCausalLM,
                "seq2seq": transformers.AutoModelForSeq2SeqLM,
            }[kind]
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
            model = auto.from_pretrained(folder, config=config, **options)
        return cls(path.stem if path.suffix == ".gguf" else path.resolve().name, kind, model.eval(), tokenizer)

    @property
    def separators(self) -> list[int]:
        """The ids of the tokens that stand between texts, or end one."""
        return separator_ids(self.tokenizer)

    def look(self, text: str, *, generate: int | None = None) -> Looked:
        """Run the model over a text and watch it.

        A causal model goes on for up to ``generate`` tokens where that is given, a seq2seq model always answers, with
        the beam search that its own settings say. What it was to say is known when it is watched: in one pass over
        text and answer, so that the rows are those of the answer, whatever hypotheses there were.

        Raises ArgumentError for a text without a token, or an encoder that is to generate.
        """
        import torch

        from regard.look.watching.watch import watch

        if generate is not None and self.kind == "encoder":
            raise ArgumentError(
                f"{self.name} is an encoder, which reads a text and does not go on; leave --generate away"
            )
        inputs, offsets, cut = self._read(text, generate or 0)
        length = inputs["input_ids"].shape[1]
        answers = self.kind == "seq2seq" or generate is not None
        keep = answers or length <= _SHORT
        with _quiet(), torch.inference_mode():
            ids = self._generated(inputs, generate) if answers else None
            if ids is None:
                called = inputs
            elif self.kind == "seq2seq":
                called = {**inputs, "decoder_input_ids": ids[:, :-1]}  # the last is said, and read no more
            else:
                called = {"input_ids": ids}
            with watch(self.model, keep_inputs=keep, memory=_MEMORY) as record:
                self.model(**called)
        if ids is None:
            return Looked(record, cut=cut)
        begin = 1 if self.kind == "seq2seq" else length
        answer = self.tokenizer.decode(ids[0, begin:], skip_special_tokens=True)
        parts = passages(text, offsets)
        if self.kind == "causal":  # heads that look for nothing rest on the first token: that is no reading
            parts = [(part, slice(max(at.start, 1), at.stop)) for part, at in parts if at.stop > 1]
            parts = [(_FIRST, slice(0, 1)), *parts, (_ANSWERED, slice(length, None))]
        tokens = {"answer": self.tokenizer.convert_ids_to_tokens(ids[0, 1:])} if self.kind == "seq2seq" else None
        queries = slice(begin - 1, ids.shape[1] - 1)  # those that told the answer's tokens, each from the one before
        shares = record.attention_on(queries, [tokens for _, tokens in parts]).mean((0, 1))
        read = [Passage(*part, float(share)) for part, share in zip(parts, shares, strict=True)]
        return Looked(record, answer, read, tokens, cut)

    def _read(self, text: str, room: int) -> tuple[dict[str, Tensor], list[tuple[int, int]], tuple[int, int] | None]:
        """The model's inputs, where each token stands in the text, and from how many to how many it was cut."""
        from regard.look.reading.words import spell_out

        most = self._most() - (room if self.kind == "causal" else 0)
        if most < 1:
            raise ArgumentError(
                f"--generate: expected less than the {self._most()} tokens that the model takes, got {room}"
            )
        fast = self.tokenizer.is_fast
        with _quiet():
            whole = len(self.tokenizer(text)["input_ids"])
            encoded = self.tokenizer(
                text, truncation=True, max_length=most, return_offsets_mapping=fast, return_tensors="pt"
            )
        ids = encoded["input_ids"][0].tolist()
        special = set(self.tokenizer.all_special_ids)
        if not set(ids) - special:
            raise ArgumentError(f"expected a text with at least one token, got {text[:40]!r}")
        if fast:
            offsets = [(first, end) for first, end in encoded.pop("offset_mapping")[0].tolist()]
        else:
            tokens = self.tokenizer.convert_ids_to_tokens(ids)
            offsets = spell_out(tokens, self.tokenizer.all_special_tokens)[1]
        return dict(encoded), offsets, (whole, most) if whole > most else None

    def _most(self) -> int:
        """The most tokens that the model takes."""
        said = (self.tokenizer.model_max_length, getattr(self.model.config, "max_position_embeddings", None))
        return int(min((n for n in said if isinstance(n, int) and n > 0), default=2**31))

    def _generated(self, inputs: dict[str, Tensor], most: int | None) -> Tensor:
        """The ids (1, T) of the best answer, behind those of the text where the model goes on with it."""
        config = self.model.generation_config
        most = most or config.max_new_tokens or _ANSWER
        pad = config.pad_token_id if config.pad_token_id is not None else self.tokenizer.eos_token_id
        ids: Tensor = self.model.generate(**inputs, max_new_tokens=most, do_sample=False, pad_token_id=pad)
        return ids[:1]


def passages(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[str, slice]]:
    """The parts of a text with their tokens: paragraphs, or else lines, or else sentences.

    >>> passages("One. Two three.", [(0, 3), (3, 4), (5, 8), (8, 14), (14, 15)])
    [('One.', slice(0, 2, None)), ('Two three.', slice(2, 5, None))]
    """
    starts = [0]
    for between in _PARTS:
        starts = [0, *(match.end() for match in between.finditer(text) if text[: match.end()].strip())]
        if len(starts) > 1:
            break
    found = []
    for first, end in zip(starts, [*starts[1:], len(text)], strict=True):
        at = [i for i, (a, b) in enumerate(offsets) if a < b and first <= b - 1 < end]
        if at and text[first:end].strip():
            found.append((text[first:end].strip(), slice(at[0], at[-1] + 1)))
    return found


def _located(path: Path) -> tuple[Path, dict[str, Any]]:
    """The folder, and how to read from it: its own code is not run, and nothing is fetched."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if path.suffix == ".gguf":
        if not path.is_file():
            raise RegardError(f"{path}: expected a GGUF file, but there is no such file; check the path")
        return path.parent, {**options, "gguf_file": path.name}
    if not (path / "config.json").exists():
        found = sorted(path.glob("*.gguf"))
        if len(found) != 1:
            raise RegardError(f"{path}: expected one GGUF file, found {len(found)}; name one of them, {found[0]}")
        return path, {**options, "gguf_file": found[0].name}
    return path, options


def _check_installed(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise RegardError(f"this model needs {' and '.join(missing)}, which is not installed: {_EXTRA}")


def _kind(config: Any, *, gguf: bool) -> Kind:
    if config.is_encoder_decoder:
        return "seq2seq"
    named = any(name.endswith(_CAUSAL) for name in config.architectures or ())
    return "causal" if gguf or named else "encoder"


@contextmanager
def _quiet() -> Iterator[None]:
    """Within, transformers says nothing of its own."""
    from transformers.utils import logging

    said: Any = logging
    level, bars = said.get_verbosity(), said.is_progress_bar_enabled()
    said.set_verbosity_error()
    said.disable_progress_bar()
    try:
        yield
    finally:
        said.set_verbosity(level)
        if bars:
            said.enable_progress_bar()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Within, whatever transformers complains of becomes one line."""
    try:
        yield
    except Exception as error:  # a damaged file can raise anything
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RegardError(f"{path}: this model cannot be opened: {reason}") from error

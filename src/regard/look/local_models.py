"""Language models on disk, as Hugging Face or llama.cpp write them: opened, run on a text, and watched."""

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

__all__ = ["LocalModel", "Passage", "WatchedText", "is_model", "passages"]

Kind = Literal["encoder", "causal", "seq2seq"]

_EXTRA = "pip install 'regard[huggingface]'"
_TOKENIZERS = ("tokenizer*", "vocab*", "merges.txt", "spiece.model", "*.bpe.model", "*.spm")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel")
_ANSWER = 128  # tokens of an answer, if neither the caller nor the model sets a number
_FIRST, _ANSWERED = "(the first token)", "(the answer itself)"
_SHORT = 512  # tokens of a text whose queries and keys are recorded for the page
_MEMORY = 2**31
_PARTS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?])\s+|(?<=[。！？])"))


class Passage(NamedTuple):
    """A part of a long text, its tokens, and its share of the weights of the answer."""

    text: str
    tokens: slice
    share: float


@dataclass(frozen=True)
class WatchedText:
    """The record of a model that read one text.

    - ``answer``: the generated text, and ``passages`` the shares of its attention, the mean over all heads
    - ``tokens``: the labels of the rows of alignments, for a page
    - ``cut``: the number of tokens of a text that is too long for the model, and the number to which it was cut
    """

    record: WatchRecord
    answer: str | None = None
    passages: list[Passage] = field(default_factory=list)
    tokens: dict[str, list[str]] | None = None
    cut: tuple[int, int] | None = None


def is_model(path: Path) -> bool:
    """Return whether this is the folder of a Hugging Face model, or a GGUF file, rather than a run."""
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
class LocalModel:
    """A model with its tokenizer.

    ``kind``: an "encoder" reads a text, a "causal" model can continue it, a "seq2seq" model generates an output.
    """

    name: str
    kind: Kind
    model: Any
    tokenizer: Any

    @classmethod
    def open(cls, path: Path) -> LocalModel:
        """Open a folder, or a GGUF file, without the network; RegardError if a file is missing or damaged."""
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
        """The ids of the tokens that separate texts, or end one."""
        return separator_ids(self.tokenizer)

    def watch(self, text: str, *, generate: int | None = None) -> WatchedText:
        """Run the model on a text and watch it.

        A causal model continues the text by up to ``generate`` tokens if that is given; a seq2seq model always
        answers, with the beam search of its own settings. The answer is generated first and then watched in one pass
        over text and answer, so that the rows are those of the answer, not of other hypotheses.

        Raises ArgumentError for a text without tokens, and for ``generate`` with an encoder.
        """
        import torch

        from regard.look.watching.watch import watch

        if generate is not None and self.kind == "encoder":
            raise ArgumentError(f"--generate: {self.name} is an encoder, which does not generate text; remove it")
        inputs, offsets, cut = self._encode(text, generate or 0)
        length = inputs["input_ids"].shape[1]
        answers = self.kind == "seq2seq" or generate is not None
        with _quiet(), torch.inference_mode():
            ids = self._generate(inputs, generate) if answers else None
            if ids is None:
                called = inputs
            elif self.kind == "seq2seq":
                called = {**inputs, "decoder_input_ids": ids[:, :-1]}  # the last token is never read
            else:
                called = {"input_ids": ids}
            with watch(self.model, keep_inputs=answers or length <= _SHORT, memory=_MEMORY) as record:
                self.model(**called)
        if ids is None:
            return WatchedText(record, cut=cut)
        begin = 1 if self.kind == "seq2seq" else length
        answer = self.tokenizer.decode(ids[0, begin:], skip_special_tokens=True)
        parts = passages(text, offsets)
        if self.kind == "causal":  # unused heads attend to the first token, whichever it is
            parts = [(part, slice(max(at.start, 1), at.stop)) for part, at in parts if at.stop > 1]
            parts = [(_FIRST, slice(0, 1)), *parts, (_ANSWERED, slice(length, None))]
        tokens = {"answer": self.tokenizer.convert_ids_to_tokens(ids[0, 1:])} if self.kind == "seq2seq" else None
        queries = slice(begin - 1, ids.shape[1] - 1)  # each token is predicted at the position before it
        shares = record.attention_on(queries, [at for _, at in parts]).mean((0, 1))
        read = [Passage(*part, float(share)) for part, share in zip(parts, shares, strict=True)]
        return WatchedText(record, answer, read, tokens, cut)

    def _encode(self, text: str, room: int) -> tuple[dict[str, Tensor], list[tuple[int, int]], tuple[int, int] | None]:
        """Return the inputs, the offsets of tokens in the text, and the numbers of tokens before and after a cut."""
        from regard.look.reading.words import spell_out

        longest = self._max_tokens() - (room if self.kind == "causal" else 0)
        if longest < 1:
            raise ArgumentError(
                f"--generate: expected fewer than the {self._max_tokens()} tokens that the model takes, got {room}"
            )
        fast = self.tokenizer.is_fast
        with _quiet():
            whole = len(self.tokenizer(text)["input_ids"])
            encoded = self.tokenizer(
                text, truncation=True, max_length=longest, return_offsets_mapping=fast, return_tensors="pt"
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
        return dict(encoded), offsets, (whole, longest) if whole > longest else None

    def _max_tokens(self) -> int:
        """Return the largest number of tokens that the model takes."""
        limits = (self.tokenizer.model_max_length, getattr(self.model.config, "max_position_embeddings", None))
        return int(min((n for n in limits if isinstance(n, int) and n > 0), default=2**31))

    def _generate(self, inputs: dict[str, Tensor], tokens: int | None) -> Tensor:
        """Return the ids (1, T) of the best answer; of a causal model, after those of the text."""
        config = self.model.generation_config
        tokens = tokens or config.max_new_tokens or _ANSWER
        pad = config.pad_token_id if config.pad_token_id is not None else self.tokenizer.eos_token_id
        ids: Tensor = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False, pad_token_id=pad)
        return ids[:1]


def passages(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[str, slice]]:
    """Split a text into parts with their tokens: paragraphs, or else lines, or else sentences.

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
    """Return the folder, and the options to read from it: its own code is not run, and nothing is fetched."""
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
    """Silence transformers within."""
    from transformers.utils import logging

    log: Any = logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn any error within into a RegardError of one line."""
    try:
        yield
    except Exception as error:  # a damaged file can raise anything
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RegardError(f"{path}: this model cannot be opened: {reason}") from error

"""Models of known behaviour show it in their record, and only once they have learnt it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import Tensor, nn

from commands import spelt
from packaged import MINILM, folder_of
from regard import Observe, causal, watch
from regard.data import Pair, Pairs, SeparatorTokenizer
from regard.look import Layer, WatchRecord
from regard.look.local_models import LocalModel
from regard.look.runs import watch_answer
from regard.nn import BlockConfig, TransformerEncoder
from regard.positions import Rotary
from regard.tasks import Seq2SeqRun
from small_runs import new_run, short_training, train

pytest_plugins = ["local_model_fixtures"]

PERIOD = 11


# Pronunciation, here of letters each of which is its own sound: the alignment is the diagonal


def spelling() -> Pairs:
    examples = [Pair(tuple(word), tuple(sounds.split())) for word, sounds in spelt(300)]
    return Pairs(examples, SeparatorTokenizer("chars"), SeparatorTokenizer("words"), "spelt")


def aligned(run: Seq2SeqRun) -> dict[tuple[str, int], list[list[int]]]:
    """Return for each head how far right of its own letter each sound of correct answers looks most, for new words."""
    known = {word for word, _ in spelt(300)}
    new = [word for word, _ in spelt(400, seed=5) if word not in known and len(word) > 3]
    run.model.eval()
    found: dict[tuple[str, int], list[list[int]]] = {}
    for answer in run.predict(new[:50]):
        record, _ = watch_answer(run, answer)
        for layer in record.layers:
            if layer.cross and layer.statistics.top is not None:
                for head, keys in enumerate(layer.statistics.top.keys[0, :, : len(answer.units), 0].tolist()):
                    found.setdefault((layer.name, head), []).append([key - row for row, key in enumerate(keys)])
    return found


def near(offsets: list[list[int]], most: int) -> float:
    return mean(abs(offset) <= most for word in offsets for offset in word)


def onward(offsets: list[list[int]]) -> float:
    return mean(b >= a - 1 for word in offsets for a, b in pairwise(word))


def test_a_recurrent_model_of_pronunciation_reads_from_left_to_right(tmp_path: Path) -> None:
    plan, sizes = (
        short_training(epochs=20, batch_tokens=300, evaluations=4),
        {"embed_dim": 16, "hidden_dim": 32, "dropout": 0.0},
    )
    run, _ = train(tmp_path / "trained", plan, spelling(), kind="recurrent", **sizes)
    (offsets,) = aligned(run).values()
    assert near(offsets, 1) > 0.95
    assert onward(offsets) > 0.95
    (drawn,) = aligned(new_run(tmp_path / "new", spelling(), plan, kind="recurrent", **sizes)).values()
    assert near(drawn, 1) < 0.8


def test_a_transformer_of_pronunciation_has_a_head_on_the_diagonal(tmp_path: Path) -> None:
    plan = short_training(epochs=40, batch_tokens=300, evaluations=4)
    run, _ = train(tmp_path / "trained", plan, spelling(), kind="transformer")
    assert max(near(offsets, 0) for offsets in aligned(run).values()) > 0.9  # measured: 0.99
    drawn = aligned(new_run(tmp_path / "new", spelling(), plan, kind="transformer"))
    assert max(near(offsets, 0) for offsets in drawn.values()) < 0.7


# Copying by induction (Olsson et al. 2022, arXiv 2209.11895)


class LanguageModel(nn.Module):
    """Two layers, which induction needs: one head copies the previous token, the next looks for it."""

    def __init__(self, symbols: int = 29, dim: int = 64, heads: int = 4) -> None:
        super().__init__()
        block = BlockConfig(dim, heads, 2 * dim, dropout=0.0, norm_first=True, positions=lambda: Rotary(dim // heads))
        self.embedding = nn.Embedding(symbols, dim)
        self.body = TransformerEncoder(block, 2)
        self.output = nn.Linear(dim, symbols)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.body(self.embedding(ids), mask=causal()))


def repeated(batch: int, period: int, generator: torch.Generator) -> Tensor:
    once = torch.randint(29, (batch, period), generator=generator)
    return torch.cat((once, once), 1)


def taught(steps: int) -> LanguageModel:
    """Train a model on so many batches of random sequences of different lengths, each repeated once."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, betas=(0.9, 0.98))
    for _ in range(steps):
        period = int(torch.randint(5, 14, (), generator=generator))
        ids = repeated(64, period, generator)
        logits = model(ids[:, :-1])[:, period - 1 :]
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, period:].flatten()).backward()
        optimizer.step()
    return model.eval()


def shown(model: nn.Module) -> WatchRecord:
    """Watch the model on repeated sequences; the third offset is that of the token that followed the first time."""
    what = Observe(received=True, distance=True, entropy=True, offsets=(0, -1, 1 - PERIOD))
    with torch.inference_mode(), watch(model, what) as record:
        model(repeated(32, PERIOD, torch.Generator().manual_seed(1)))
    return record


def copying(layer: Layer) -> list[float]:
    """Return each head's weight on the token that followed the first time, the mean over the repetition."""
    assert layer.statistics.offsets is not None
    return layer.statistics.offsets[:, :, PERIOD:, 2].mean((0, 2)).tolist()


def test_the_heads_that_copy_are_found() -> None:
    model = taught(450)
    record = shown(model)
    first, second = record.layers
    assert max(copying(second)) > 0.6  # measured: 0.80
    assert max(copying(first)) < 0.2
    marked = [one for one in record.summary() if one.words.startswith("previous token")]
    assert {one.layer for one in marked} == {first.name}
    assert max(one.previous for one in marked) > 0.65
    far = [one.distance for one in record.summary() if one.layer == second.name]
    assert mean(far) > 2 * min(one.distance for one in marked)
    drawn = shown(LanguageModel().eval())
    assert not any(one.words for one in drawn.summary())
    assert max(copying(drawn.layers[1])) < 0.2


# Models from elsewhere


TEXTS = [
    "The history of tea in Europe begins with Portuguese sailors, who brought it home from China. It was a luxury for "
    "two hundred years; then the price fell, and everybody drank it. Coffee had come from the other direction.",
    "Once upon a time there was a small model that could not remember where it had put its keys. It looked everywhere.",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(add(i, 1))\n",
]


def test_a_bert_has_a_head_for_the_previous_token() -> None:
    """Clark et al. 2019, arXiv 1906.04341, section 3.1."""
    local = LocalModel.open(folder_of(MINILM) / "model")
    for text in TEXTS:
        best = max(local.watch(text).record.summary(local.separators), key=lambda one: one.previous)
        assert (best.layer, best.head) == ("encoder.layer.0.attention.self", 2)
        assert best.previous > 0.85


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
def test_a_language_model_rests_on_its_first_token_from_the_fourth_layer_on(smollm2: Path) -> None:
    """Xiao et al. 2023, arXiv 2309.17453, section 3.1: the attention sink."""
    local = LocalModel.open(smollm2)
    for text in TEXTS:
        heads = local.watch(text).record.summary()
        assert len(heads) == 30 * 9
        shares = [mean(one.first for one in heads[9 * layer : 9 * layer + 9]) for layer in range(30)]
        assert max(shares[:2]) < 0.2  # as by chance: these look at what stands near
        assert sum(share > 0.4 for share in shares[3:]) >= 21  # of 27
        assert mean(shares[3:]) > 0.5

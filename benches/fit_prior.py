"""Fits the weights that ship as the acceptance model's prior, and says how good they are.

    python benches/fit_prior.py --tokenizer qwen chat.jsonl rag.jsonl ... --out rust/ngram-spec/src/prior.rs
    python benches/fit_prior.py --tokenizer qwen chat.jsonl rag.jsonl ... --leave-one-out DIR

Each file counts as one workload, and all count the same, however many tokens they hold. Noise (random
ids, in which nothing can be foretold) is one more that counts a quarter, since no recording teaches what
such text looks like. A replay shows at each position all candidate tokens and whether the recording goes
on with them; a logistic regression is fitted to that (Newton's method, a small quadratic penalty),
twice, since the weights decide which positions a draft comes to. With `--leave-one-out` each file gets
weights that were fitted on the others, written to DIR/FILE.prior.json, for `ngram-spec replay --prior`;
the expected calibration error is printed.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from ngram_spec import AcceptanceModel, Drafter
from ngram_spec.recordings import TokenizedResponse, choose_tokenizer, load_responses
from rich.progress import track

MAX_DRAFT_TOKENS = 64
# Between the costs of an idle and of a loaded GPU: a replay steps as such a server would.
DRAFT_COST = 0.02
PENALTY = 3.0
NUM_ROUNDS = 2
NOISE = "noise"
NOISE_WORTH = 0.25

Floats = npt.NDArray[np.float64]
Prior = dict[str, float]


class Examples:
    """Candidate tokens of one workload: their features, whether they came true, and which were drafted."""

    def __init__(
        self, responses: Sequence[TokenizedResponse], prior: Mapping[str, float] | None, name: str
    ) -> None:
        self.worth = NOISE_WORTH if name == NOISE else 1.0
        features: list[list[float]] = []
        came_true: list[bool] = []
        drafted: list[bool] = []
        acceptance = AcceptanceModel(prior)
        for response in track(responses, f"replaying {name}"):
            drafter = Drafter(
                response.prompt_token_ids,
                max_draft_tokens=MAX_DRAFT_TOKENS,
                draft_cost=DRAFT_COST,
                eos_token_ids=response.eos_token_ids,
                acceptance=acceptance,
            )
            output = response.output_token_ids.tolist()
            end = 1
            drafter.extend(output[:end])
            while end < len(output):
                draft, rest = drafter.draft().token_ids, output[end:]
                candidates = drafter.candidates(min(MAX_DRAFT_TOKENS, len(rest)))
                for emitted, position in zip(rest, candidates, strict=False):
                    for rank, (token, of_token) in enumerate(position):
                        features.append(of_token)
                        came_true.append(token == emitted)
                        drafted.append(rank == 0)
                    if position[0][0] != emitted:
                        break  # behind it the recording is no longer what the draft goes on from
                accepted = next(
                    (n for n, (a, b) in enumerate(zip(draft, rest, strict=False)) if a != b), len(draft)
                )
                drafter.extend(rest[: accepted + 1])
                end += accepted + 1
        self.features = np.array(features, dtype=np.float64)
        self.came_true = np.array(came_true, dtype=np.float64)
        self.drafted = np.array(drafted)


def fitted(workloads: Sequence[Examples]) -> Floats:
    """Return the weights with the highest likelihood, every workload weighing what it is worth."""
    features = np.concatenate([w.features for w in workloads])
    came_true = np.concatenate([w.came_true for w in workloads])
    sizes = [len(w.came_true) for w in workloads]
    importance = np.concatenate(
        [np.full(len(w.came_true), w.worth * np.mean(sizes) / len(w.came_true)) for w in workloads]
    )
    weights = np.zeros(features.shape[1])
    for _ in range(30):
        p = probability(features, weights)
        gradient = features.T @ (importance * (came_true - p)) - PENALTY * weights
        curvature = (features * (importance * p * (1 - p))[:, None]).T @ features
        step = np.linalg.solve(curvature + PENALTY * np.eye(len(weights)), gradient)
        weights += step
        if np.abs(step).max() < 1e-6:
            break
    return weights


def noise() -> list[TokenizedResponse]:
    """Return responses of random ids, from few different ones to many."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, num_ids, 3_000, dtype=np.int32) for num_ids in (30, 300, 3_000, 30_000)]
    return [TokenizedResponse(text[:2_000], text[2_000:]) for text in texts]


def probability(features: Floats, weights: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-(features @ weights))))


def calibration_error(examples: Examples, weights: Floats) -> float:
    """Return the expected calibration error over ten bins, of the tokens that were drafted."""
    p = probability(examples.features[examples.drafted], weights)
    came_true = examples.came_true[examples.drafted]
    bins = np.minimum((p * 10).astype(int), 9)
    gaps = [
        (bins == b).mean() * abs(p[bins == b].mean() - came_true[bins == b].mean())
        for b in set(bins.tolist())
    ]
    return float(sum(gaps))


def as_prior(weights: Floats) -> Prior:
    return dict(zip(AcceptanceModel.feature_names(), map(float, weights), strict=True))


def as_rust(prior: Prior, files: Sequence[Path]) -> str:
    lines = [
        "//! The shipped weights. Written by a command; change that, not this:",
        "//!",
        f"//! `python benches/fit_prior.py --tokenizer qwen {' '.join(file.name for file in files)} --out "
        "rust/ngram-spec/src/prior.rs`",
        "",
        "use crate::features::NUM_FEATURES;",
        "",
        "/// In the order of [`crate::Feature::ALL`].",
        "#[rustfmt::skip]",
        "pub(crate) const WEIGHTS: [f32; NUM_FEATURES] = [",
        *(f"    {weight:.4f}, // {name}" for name, weight in prior.items()),
        "];",
        "",
    ]
    return "\n".join(line.rstrip() for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recordings, one workload each")
    parser.add_argument("--tokenizer", help="as for ngram-spec replay")
    parser.add_argument("--out", type=Path, help="write the prior here, as Rust")
    parser.add_argument("--leave-one-out", type=Path, metavar="DIR", help="write one prior per file left out")
    options = parser.parse_args()

    workloads: dict[Path, list[TokenizedResponse]] = {}
    for file in options.files:
        responses = load_responses(file)
        tokenizer = choose_tokenizer(options.tokenizer, responses)
        workloads[file] = [response.tokenize(tokenizer) for response in responses]
    prior: Prior | None = None
    workloads[Path(NOISE)] = noise()
    for _ in range(NUM_ROUNDS):
        examples = {file: Examples(workloads[file], prior, file.name) for file in workloads}
        prior = as_prior(fitted(list(examples.values())))
    assert prior is not None
    if options.out:
        options.out.write_text(as_rust(prior, options.files))
    for left_out in options.files if options.leave_one_out else ():
        weights = fitted([examples[file] for file in workloads if file != left_out])
        options.leave_one_out.mkdir(parents=True, exist_ok=True)
        out = options.leave_one_out / f"{left_out.stem}.prior.json"
        out.write_text(json.dumps(as_prior(weights), indent=1))
        error = calibration_error(examples[left_out], weights)
        print(f"{left_out.name}: expected calibration error {error:.3f} with weights of the others, {out}")


if __name__ == "__main__":
    main()

//! The shipped weights. Written by a command; change that, not this:
//!
//! `python benches/fit_prior.py --tokenizer qwen chat.jsonl rag.jsonl summarization.jsonl code_edit.jsonl agentic.jsonl --out rust/ngram-spec/src/prior.rs`

use crate::features::NUM_FEATURES;

/// In the order of [`crate::Feature::ALL`].
#[rustfmt::skip]
pub(crate) const WEIGHTS: [f32; NUM_FEATURES] = [
    -1.6896, // bias
    1.1840, // once
    1.8020, // twice
    1.7257, // always
    -1.9649, // never
    -1.9156, // no match
    0.7351, // once x length
    1.4386, // once x length over 16
    0.6605, // twice x length
    0.6936, // always x length
    0.2888, // mixed x length
    0.1390, // never x length
    0.7267, // mixed x odds
    0.2253, // mixed x total
    0.5630, // always x total
    0.0580, // once x distance
    0.4164, // shorter odds
    0.2651, // shorter total
    0.1616, // margin
    0.3218, // no shorter
    0.2633, // fast rate
    0.2270, // slow rate
    -0.1068, // fast rate x mixed
    -0.1842, // fast rate x length
    0.1507, // position
    0.0149, // copied
    0.3619, // copied x length
    -0.3309, // copied x agreeing
    -0.4377, // not copied x length
    0.9424, // resumed
    0.1856, // resumed x length
    -0.3518, // resumed x lost
    -0.1228, // not resumed x length
];

//! The automaton's twin: the definitions, looked up by brute force, so simple that they are unlikely to be wrong.

use std::collections::HashMap;

use ngram_spec::TokenId;
use ngram_spec::automaton::{Continuation, MAX_COUNTED_LINKS};

/// How often `string` ends at or before `end` in the text.
fn num_occurrences(text: &[TokenId], string: &[TokenId], end: usize) -> usize {
    (string.len()..=end).filter(|&at| text[..at].ends_with(string)).count()
}

/// Whether the suffix of length `len` of `text[..end]` was followed by `text[end]` before.
fn was_followed(text: &[TokenId], len: usize, end: usize) -> bool {
    let suffix = &text[end - len..end];
    (len..end).any(|at| text[..at].ends_with(suffix) && text[at] == text[end])
}

/// Whether the suffix of length `len` of `text[..end]` is counted as followed by `text[end]`.
///
/// Suffixes that have occurred at the same places form one class. Among the classes that this token has followed
/// before, the longest [`MAX_COUNTED_LINKS`] are counted; a token that follows for the first time always is.
fn is_counted(text: &[TokenId], len: usize, end: usize) -> bool {
    if !was_followed(text, len, end) {
        return true;
    }
    let mut classes = 0;
    let mut last = 0;
    for longer in (len..=end).rev() {
        let occurrences = num_occurrences(text, &text[end - longer..end], end);
        if was_followed(text, longer, end) && occurrences != last {
            classes += 1;
            last = occurrences;
        }
    }
    classes <= MAX_COUNTED_LINKS
}

/// What followed `string` in the text.
pub(crate) fn continuation(text: &[TokenId], string: &[TokenId]) -> Option<Continuation> {
    let mut counts: HashMap<TokenId, u32> = HashMap::new();
    let mut found: Option<Continuation> = None;
    for end in string.len()..text.len() {
        if !text[..end].ends_with(string) || !is_counted(text, string.len(), end) {
            continue;
        }
        let count = counts.entry(text[end]).or_insert(0);
        *count += 1;
        let best = found.map_or(0, |found| found.count);
        let (token, count) =
            if *count >= best { (text[end], *count) } else { found.map(|f| (f.token, f.count)).unwrap() };
        let total = found.map_or(0, |found| found.total) + 1;
        found = Some(Continuation { token, count, total, end: u32::try_from(end).unwrap() });
    }
    found
}

/// Lengths of the matches of what `suffix_of` ends with: suffixes that the text continues, one (the longest) for each
/// set of places, longest first.
pub(crate) fn match_lens(text: &[TokenId], suffix_of: &[TokenId]) -> Vec<usize> {
    let mut lens = Vec::new();
    let mut last = 0;
    for len in (1..=suffix_of.len().min(text.len())).rev() {
        let suffix = &suffix_of[suffix_of.len() - len..];
        let continued = num_occurrences(text, suffix, text.len().saturating_sub(1));
        let occurrences = num_occurrences(text, suffix, text.len());
        if continued > 0 && occurrences != last {
            lens.push(len);
            last = occurrences;
        }
    }
    lens
}

/// The most frequent continuation of the longest match, again and again.
pub(crate) fn draft(text: &[TokenId], num_tokens: usize) -> Vec<TokenId> {
    let mut all = text.to_vec();
    for _ in 0..num_tokens {
        let Some(&len) = match_lens(text, &all).first() else { break };
        all.push(continuation(text, &all[all.len() - len..]).unwrap().token);
    }
    all.split_off(text.len())
}

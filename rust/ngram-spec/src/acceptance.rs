//! How probable it is that the target model agrees with a draft token.
//!
//! Two things decide it: how long the match is and how far its earlier continuations agree. Length alone or frequency
//! alone each ignore half of the evidence.

use crate::automaton::Continuation;
use crate::error::Error;
use crate::matcher::Match;

/// How far the earlier continuations of a match agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// The match has been continued once.
    Once,
    /// Twice, by the same token.
    Twice,
    /// Three times or more, always by the same token.
    Always,
    /// By different tokens, at least half of the time by the most frequent one.
    Majority,
    /// By different tokens, none of them half of the time.
    Plurality,
}

impl Agreement {
    /// The five classes, in the order of [`Prior::probabilities`].
    pub const ALL: [Self; 5] = [Self::Once, Self::Twice, Self::Always, Self::Majority, Self::Plurality];

    /// Name of the class where a prior is written down.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Twice => "twice",
            Self::Always => "always",
            Self::Majority => "majority",
            Self::Plurality => "plurality",
        }
    }

    fn of(next: Continuation) -> Self {
        match (next.count, next.total) {
            (count, total) if count == total => match total {
                ..=1 => Self::Once,
                2 => Self::Twice,
                _ => Self::Always,
            },
            (count, total) if count >= total - count => Self::Majority,
            _ => Self::Plurality,
        }
    }
}

/// A table of acceptance probabilities, by match length and [`Agreement`].
#[derive(Clone, Debug, PartialEq)]
pub struct Prior {
    /// Match lengths of the table's columns, rising from 1; between them the logarithm of the length interpolates.
    pub match_lens: Vec<u32>,
    /// One row per [`Agreement`], one probability per match length.
    pub probabilities: [Vec<f64>; 5],
}

impl Default for Prior {
    /// Middle of the range that five workloads span (RAG, summarization, code edits, tool-calling agents, chat).
    fn default() -> Self {
        Self {
            match_lens: vec![1, 2, 3, 4, 8, 16, 23],
            probabilities: [
                vec![0.42, 0.58, 0.67, 0.74, 0.81, 0.88, 0.96],
                vec![0.56, 0.60, 0.75, 0.80, 0.83, 0.96, 0.98],
                vec![0.70, 0.84, 0.88, 0.96, 0.96, 0.97, 0.98],
                vec![0.30, 0.24, 0.29, 0.31, 0.42, 0.42, 0.42],
                vec![0.13, 0.14, 0.15, 0.16, 0.16, 0.16, 0.16],
            ],
        }
    }
}

/// Match lengths beyond this one count as this one.
const MAX_TABLE_LEN: usize = 64;

/// Estimates acceptance. Its owner hands it to drafters and pools, so that what it knows has one place.
#[derive(Clone, Debug)]
pub struct AcceptanceModel {
    /// Probability by agreement and match length.
    table: [[f64; MAX_TABLE_LEN + 1]; 5],
}

impl Default for AcceptanceModel {
    fn default() -> Self {
        Self::from_valid(&Prior::default())
    }
}

impl AcceptanceModel {
    /// Takes a prior of one's own.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when the lengths do not rise from 1, a row has another length than they, or a
    /// probability lies outside 0 to 1.
    pub fn new(prior: &Prior) -> Result<Self, Error> {
        let lens = &prior.match_lens;
        if lens.first() != Some(&1) || !lens.is_sorted_by(|a, b| a < b) {
            return Err(Error::option("match_len", "strictly rising from 1", format_args!("{lens:?}")));
        }
        for (agreement, row) in Agreement::ALL.iter().zip(&prior.probabilities) {
            if row.len() != lens.len() {
                return Err(Error::option(
                    agreement.name(),
                    "one prior probability per match length",
                    format_args!("{row:?}"),
                ));
            }
            if let Some(p) = row.iter().find(|p| !(0.0..=1.0).contains(*p)) {
                return Err(Error::option(agreement.name(), "prior probabilities from 0 to 1", p));
            }
        }
        Ok(Self::from_valid(prior))
    }

    fn from_valid(prior: &Prior) -> Self {
        let table = std::array::from_fn(|row| {
            std::array::from_fn(|len| interpolate(&prior.match_lens, &prior.probabilities[row], len))
        });
        Self { table }
    }

    /// Probability that the target model emits the continuation of the longest match, given the matches at this
    /// point, longest first.
    ///
    /// A shorter match has occurred at more places. Where it has always been continued by the same token, it may
    /// know more than a longer one that was seen once.
    pub fn probability(&self, matches: impl Iterator<Item = Match>) -> f64 {
        let mut best = 0.0_f64;
        for (rank, found) in matches.enumerate() {
            let agreement = Agreement::of(found.next);
            best = best.max(self.lookup(agreement, found.len));
            let disagrees = matches!(agreement, Agreement::Majority | Agreement::Plurality);
            if disagrees || rank + 1 == MAX_MATCHES {
                break;
            }
        }
        best
    }

    fn lookup(&self, agreement: Agreement, match_len: u32) -> f64 {
        self.table[agreement as usize][(match_len as usize).min(MAX_TABLE_LEN)]
    }
}

/// Matches that are looked at per draft token; each further one is a cache miss and says less.
const MAX_MATCHES: usize = 4;

#[allow(clippy::cast_precision_loss)] // lengths are small
fn interpolate(lens: &[u32], values: &[f64], len: usize) -> f64 {
    let above = lens.partition_point(|&at| (at as usize) < len);
    match above {
        0 => values[0],
        _ if above == lens.len() => values[above - 1],
        _ => {
            let (from, to) = (f64::from(lens[above - 1]).ln(), f64::from(lens[above]).ln());
            let share = ((len as f64).ln() - from) / (to - from);
            values[above - 1] + share * (values[above] - values[above - 1])
        }
    }
}

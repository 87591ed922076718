//! What speaks for a draft token, as numbers.

use std::ops::{Index, IndexMut};
use std::sync::LazyLock;

use crate::automaton::{SuffixAutomaton, TokenId};
use crate::copying::Copying;
use crate::matcher::Match;

macro_rules! features {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// One thing that is known about a draft token.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature { $($(#[$doc])* $variant,)* }

        impl Feature {
            /// All of them, in the order of [`Features`].
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name where weights are written down.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

features! {
    /// Always 1.
    Bias = "bias",
    /// The longest match was continued once, by this token.
    Once = "once",
    /// Twice, both times by this token.
    Twice = "twice",
    /// Three times or more, always by this token.
    Always = "always",
    /// Never by this token.
    Never = "never",
    /// Nothing matches.
    NoMatch = "no match",
    /// Logarithm of the match length, for each of these classes.
    OnceLen = "once x length",
    /// The same beyond 16 tokens.
    OnceLongLen = "once x length over 16",
    /// Logarithm of the match length.
    TwiceLen = "twice x length",
    /// Logarithm of the match length.
    AlwaysLen = "always x length",
    /// Logarithm of the match length, where continuations differ.
    MixedLen = "mixed x length",
    /// Logarithm of the match length.
    NeverLen = "never x length",
    /// Logarithm of the odds of this token among the continuations that differ.
    MixedOdds = "mixed x odds",
    /// Logarithm of their number.
    MixedTotal = "mixed x total",
    /// Logarithm of the number of continuations.
    AlwaysTotal = "always x total",
    /// Logarithm of the distance to the match.
    OnceDistance = "once x distance",
    /// Odds of this token where the next shorter match stands and the longest does not.
    ShorterOdds = "shorter odds",
    /// Logarithm of the number of those places.
    ShorterTotal = "shorter total",
    /// How much longer the longest match is than the next, as a logarithm.
    Margin = "margin",
    /// There is no shorter match.
    NoShorter = "no shorter",
    /// Odds, as a logarithm, that the longest match foretold one of the last 8 or so tokens.
    FastRate = "fast rate",
    /// Of the last 64 or so.
    SlowRate = "slow rate",
    /// The same where continuations differ.
    FastRateMixed = "fast rate x mixed",
    /// The same by the logarithm of the match length.
    FastRateLen = "fast rate x length",
    /// Logarithm of the position in the draft.
    Position = "position",
    /// The token goes on with a copy.
    Copied = "copied",
    /// Logarithm of the tokens copied so far.
    CopiedLen = "copied x length",
    /// Logarithm of the tokens that agree.
    CopiedAgreeing = "copied x agreeing",
    /// A copy goes on otherwise.
    NotCopied = "not copied x length",
    /// The token goes on behind an edit.
    Resumed = "resumed",
    /// Logarithm of the tokens copied before the edit.
    ResumedLen = "resumed x length",
    /// Logarithm of the tokens since the edit.
    ResumedLost = "resumed x lost",
    /// A copy would go on otherwise behind an edit.
    NotResumed = "not resumed x length",
}

/// How many numbers describe a draft token.
pub const NUM_FEATURES: usize = Feature::ALL.len();

/// One number per [`Feature`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Features(pub [f32; NUM_FEATURES]);

impl Features {
    /// All 0.
    pub const ZERO: Self = Self([0.0; NUM_FEATURES]);
}

impl Index<Feature> for Features {
    type Output = f32;

    fn index(&self, feature: Feature) -> &f32 {
        &self.0[feature as usize]
    }
}

impl IndexMut<Feature> for Features {
    fn index_mut(&mut self, feature: Feature) -> &mut f32 {
        &mut self.0[feature as usize]
    }
}

/// Share of recent tokens that the longest match foretold, as moving averages over two spans.
///
/// Every token of the context is a test of what would have been drafted there, so this needs no drafts: it tells a
/// passage that is being copied from one that is not, and notices the change within two tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitRates {
    /// Over some 8 tokens.
    pub fast: f32,
    /// Over some 64 tokens.
    pub slow: f32,
}

impl Default for HitRates {
    fn default() -> Self {
        Self { fast: 0.3, slow: 0.3 }
    }
}

impl HitRates {
    /// The rates after one more token.
    #[must_use]
    pub fn after(self, was_foretold: bool) -> Self {
        let hit = f32::from(u8::from(was_foretold));
        Self { fast: self.fast + (hit - self.fast) * 0.15, slow: self.slow + (hit - self.slow) * 0.025 }
    }

    /// Both rates as the logarithm of their odds; 0 and 1 count as 2 % and 98 %, so that these stay finite.
    #[must_use]
    pub fn log_odds(self) -> [f32; 2] {
        [self.fast, self.slow].map(|rate| ((rate + 0.02) / (1.02 - rate)).ln())
    }
}

/// What is known at one position of a draft, whichever token is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The context.
    pub automaton: &'a SuffixAutomaton,
    /// The longest match.
    pub longest: Option<Match>,
    /// The next shorter one.
    pub shorter: Option<Match>,
    /// The copy that is going on.
    pub copying: Option<Copying>,
    /// How well recent tokens were foretold: [`HitRates::log_odds`].
    pub rates: [f32; 2],
    /// Draft tokens before this one.
    pub position: usize,
}

impl Situation<'_> {
    /// The features of `token` as the next one.
    #[must_use]
    pub fn features(&self, token: TokenId) -> Features {
        let mut features = Features::ZERO;
        self.describe(token, &mut |feature, value| features[feature] = value);
        features
    }

    /// Tells the features of `token` that are not 0, one by one: most of them are, at any position.
    pub fn describe(&self, token: TokenId, tell: &mut impl FnMut(Feature, f32)) {
        tell(Feature::Bias, 1.0);
        tell(Feature::Position, log1p(self.position));
        let [fast, slow] = self.rates;
        tell(Feature::FastRate, fast);
        tell(Feature::SlowRate, slow);
        match self.longest {
            None => tell(Feature::NoMatch, 1.0),
            Some(longest) => {
                let count = self.count(longest, token);
                tell(Feature::FastRateLen, fast * log_len(longest.len));
                self.describe_match(longest, count, fast, tell);
                self.describe_shorter(token, longest, count, tell);
            }
        }
        self.describe_copy(token, tell);
    }

    /// The token that the copy goes on with.
    pub(crate) fn expected(&self) -> Option<TokenId> {
        self.copying.and_then(|copying| self.automaton.tokens().get(copying.next as usize).copied())
    }

    fn count(&self, found: Match, token: TokenId) -> u32 {
        if found.next.token == token { found.next.count } else { self.automaton.count_of(found.state, token) }
    }

    fn describe_match(&self, longest: Match, count: u32, fast: f32, tell: &mut impl FnMut(Feature, f32)) {
        let len = log_len(longest.len);
        match (count, longest.next.total) {
            (0, _) => {
                tell(Feature::Never, 1.0);
                tell(Feature::NeverLen, len);
            }
            (1, 1) => {
                tell(Feature::Once, 1.0);
                tell(Feature::OnceLen, len);
                tell(Feature::OnceLongLen, (len - log_len(16)).max(0.0));
                let distance = self.automaton.tokens().len() - longest.next.end as usize;
                tell(Feature::OnceDistance, log1p(distance) - 6.0);
            }
            (2, 2) => {
                tell(Feature::Twice, 1.0);
                tell(Feature::TwiceLen, len);
            }
            (count, total) if count == total => {
                tell(Feature::Always, 1.0);
                tell(Feature::AlwaysLen, len);
                tell(Feature::AlwaysTotal, log1p(total as usize - 1));
            }
            (count, total) => {
                tell(Feature::MixedLen, len);
                tell(Feature::MixedOdds, log_odds(count, total - count));
                tell(Feature::MixedTotal, log1p(total as usize - 1));
                tell(Feature::FastRateMixed, fast);
            }
        }
    }

    /// A shorter match stands in more places; what it adds is what followed there.
    fn describe_shorter(&self, token: TokenId, longest: Match, count: u32, tell: &mut impl FnMut(Feature, f32)) {
        let Some(shorter) = self.shorter else {
            tell(Feature::NoShorter, 1.0);
            return;
        };
        let added = shorter.next.total.saturating_sub(longest.next.total);
        let added_count = self.count(shorter, token).saturating_sub(count).min(added);
        tell(Feature::ShorterOdds, log_odds(added_count, added - added_count));
        tell(Feature::ShorterTotal, log1p(added as usize));
        tell(Feature::Margin, log_len(longest.len) - log_len(shorter.len));
    }

    fn describe_copy(&self, token: TokenId, tell: &mut impl FnMut(Feature, f32)) {
        let (Some(copying), Some(expected)) = (self.copying, self.expected()) else { return };
        let copied = log1p(copying.num_copied.min(255) as usize);
        match (expected == token, copying.num_lost) {
            (true, 0) => {
                tell(Feature::Copied, 1.0);
                tell(Feature::CopiedLen, copied);
                tell(Feature::CopiedAgreeing, log1p(copying.num_agreeing.min(63) as usize));
            }
            (true, num_lost) => {
                tell(Feature::Resumed, 1.0);
                tell(Feature::ResumedLen, copied);
                tell(Feature::ResumedLost, log1p(num_lost as usize));
            }
            (false, 0) => tell(Feature::NotCopied, copied),
            (false, _) => tell(Feature::NotResumed, copied),
        }
    }
}

/// Longer matches than this are not told apart.
const MAX_LEN: u32 = 64;

fn log_len(len: u32) -> f32 {
    log1p(len.clamp(1, MAX_LEN) as usize - 1)
}

/// Logarithms of the counts that occur most; computing them anew takes longer than all else here.
static LOG1P: LazyLock<[f32; 1_024]> = LazyLock::new(|| std::array::from_fn(|number| ln(number, 1.0)));
static LOG_PLUS: LazyLock<[f32; 1_024]> = LazyLock::new(|| std::array::from_fn(|number| ln(number, 0.4)));

fn log1p(number: usize) -> f32 {
    LOG1P.get(number).copied().unwrap_or_else(|| ln(number, 1.0))
}

fn log_odds(yes: u32, no: u32) -> f32 {
    let log = |number: u32| LOG_PLUS.get(number as usize).copied().unwrap_or_else(|| ln(number as usize, 0.4));
    log(yes) - log(no)
}

#[allow(clippy::cast_precision_loss)] // a logarithm is taken of it
fn ln(number: usize, plus: f32) -> f32 {
    (number as f32 + plus).ln()
}

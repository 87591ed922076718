//! Where the text that is being copied goes on, also across edits.
//!
//! Real edits copy a span, change a token or a line, and go on copying nearby. The longest match needs several tokens
//! to find that place again, since one token (a comma, a bracket) has stood everywhere. Whoever remembers where the
//! copying broke off finds it at the first hint.

use crate::automaton::{Continuation, TokenId};
use crate::edges::u32_from;

/// A match this long starts a copy.
const MIN_COPY_LEN: u32 = 4;
/// Tokens after a break in which the way back is looked for.
const MAX_LOST: u32 = 32;
/// How far before and behind the break it is looked for.
const MAX_BACK: usize = 8;
const MAX_AHEAD: usize = 48;
/// Behind a break this many tokens in a row are a copy that goes on.
const MIN_RESUMED: u32 = 3;
/// Longer agreement than this is not told apart while searching.
const MAX_COMPARED: usize = 8;

/// A copy that is going on, or that has just been broken by an edit. It follows from the tokens of the context alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copying {
    /// Index in the context of the token that is expected next; after a break, of the one that was expected there.
    pub next: u32,
    /// Tokens copied so far, those before breaks that were mended included.
    pub num_copied: u32,
    /// Tokens since the copy broke; 0 while it goes on.
    pub num_lost: u32,
    /// Tokens before `next` that equal the end of the context, as far as was compared.
    pub num_agreeing: u32,
}

impl Copying {
    /// The copy after one more token, the last of `tokens`; `matched` is the longest match there is now and what
    /// followed it.
    #[must_use]
    pub fn after(copying: Option<Self>, tokens: &[TokenId], matched: Option<(u32, Continuation)>) -> Option<Self> {
        let (&token, before) = tokens.split_last()?;
        let copying = copying.and_then(|copying| {
            if copying.num_lost == 0 && before[copying.next as usize] == token {
                return Some(copying.advance());
            }
            let num_lost = copying.num_lost + 1;
            (num_lost <= MAX_LOST).then_some(Self { num_lost, num_agreeing: 0, ..copying })
        });
        let Some((len, found)) = matched.filter(|&(len, _)| len >= MIN_RESUMED) else { return copying };
        // The match says that something is being copied. Near the break it is the copy that goes on.
        let near = copying.filter(|copying| copying.num_lost > 0).map(|copying| copying.located(tokens));
        if let Some(near) = near.filter(|near| near.num_agreeing >= MIN_RESUMED) {
            return Some(near.resumed());
        }
        match copying {
            Some(copying) if copying.num_lost == 0 && copying.num_agreeing >= len => Some(copying),
            _ if len < MIN_COPY_LEN => copying,
            Some(Self { num_lost: 0, num_copied, .. }) => {
                Some(Self { num_copied: num_copied.max(len), ..Self::starting(len, found) })
            }
            _ => Some(Self::starting(len, found)),
        }
    }

    fn starting(len: u32, found: Continuation) -> Self {
        Self { next: found.end, num_copied: len, num_lost: 0, num_agreeing: len }
    }

    /// The copy after the token that it expects.
    #[must_use]
    pub fn advance(self) -> Self {
        let (next, num_agreeing) = (self.next + 1, self.num_agreeing + 1);
        if self.num_lost == 0 {
            Self { next, num_agreeing, num_copied: self.num_copied + 1, ..self }
        } else {
            let found = Self { next, num_agreeing, num_lost: self.num_lost + 1, ..self };
            if num_agreeing >= MIN_RESUMED { found.resumed() } else { found }
        }
    }

    fn resumed(self) -> Self {
        Self { num_copied: self.num_copied + self.num_agreeing, num_lost: 0, ..self }
    }

    /// Where a broken copy goes on: the place near the break whose tokens agree best with the end of the context.
    /// Among equals it is the one nearest to where a plain substitution would go on.
    #[must_use]
    pub fn located(self, tokens: &[TokenId]) -> Self {
        if self.num_lost == 0 {
            return self;
        }
        let broken_at = self.next as usize;
        let substituted = broken_at + self.num_lost as usize;
        let last = tokens.len() - 1;
        let (from, to) = (broken_at.saturating_sub(MAX_BACK), (broken_at + MAX_AHEAD).min(last));
        let ranked = tokens[from..to].iter().enumerate().filter(|&(_, token)| *token == tokens[last]).map(|(at, _)| {
            let place = from + at + 1;
            let pairs = tokens[..place].iter().rev().zip(tokens.iter().rev());
            let num_agreeing = pairs.take(MAX_COMPARED).take_while(|(a, b)| a == b).count();
            (num_agreeing, std::cmp::Reverse(place.abs_diff(substituted)), place)
        });
        let best = ranked.max();
        let (num_agreeing, next) = best.map_or((0, substituted), |(num_agreeing, _, place)| (num_agreeing, place));
        Self { next: u32_from(next), num_agreeing: u32_from(num_agreeing), ..self }
    }
}

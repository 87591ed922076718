//! Every way in which a call can be refused.

use std::fmt;

use crate::TokenId;
use crate::automaton::MAX_CONTEXT_LEN;

/// Why a call was refused; nothing was changed by it. Each message carries the rule, the value and the place.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A token id that no vocabulary has.
    InvalidTokenId {
        /// The id.
        value: TokenId,
        /// Its index in the argument.
        index: usize,
    },
    /// More tokens than one automaton can hold.
    ContextTooLong {
        /// The length that was asked for.
        len: usize,
    },
    /// An option outside its range.
    InvalidOption {
        /// The option's name.
        name: &'static str,
        /// What it must be.
        rule: &'static str,
        /// What it was.
        value: String,
    },
}

impl Error {
    pub(crate) fn option(name: &'static str, rule: &'static str, value: impl fmt::Display) -> Self {
        Self::InvalidOption { name, rule, value: value.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidTokenId { value, index } => {
                write!(f, "token ids must be non-negative, got {value} at index {index}")
            }
            Self::ContextTooLong { len } => {
                write!(f, "a context holds at most {MAX_CONTEXT_LEN} tokens, got {len}")
            }
            Self::InvalidOption { name, rule, value } => {
                write!(f, "{name} must be {rule}, got {value}")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Refuses negative ids and contexts that grow too long.
pub(crate) fn check_tokens(context_len: usize, tokens: &[TokenId]) -> Result<(), Error> {
    let len = context_len.saturating_add(tokens.len());
    if len > MAX_CONTEXT_LEN {
        return Err(Error::ContextTooLong { len });
    }
    match tokens.iter().position(|&token| token < 0) {
        Some(index) => Err(Error::InvalidTokenId { value: tokens[index], index }),
        None => Ok(()),
    }
}

//! Draft tokens for speculative decoding, looked up in the context.
//!
//! A target model emits one token per pass. Where its output copies from the context (quotes, edits, tool
//! arguments), the next tokens can be looked up and many of them verified in one pass. The loop has four steps, one
//! module each, in the order in which data flows:
//!
//! 1. [`automaton`] takes every token of the context and knows every string in it ([`edges`] holds its transitions);
//! 2. [`matcher`] follows the longest match of what the context ends with, token by token, and [`copying`] the passage
//!    that is being copied, also across edits (`walk` keeps both in step);
//! 3. [`acceptance`] says how probable it is that the target model agrees with a token, from its [`features`];
//! 4. [`policy`] stops where the next token costs more than it brings.
//!
//! [`drafter`] runs the loop for one request, [`pool`] for the rows of a batch; [`rows`] recognises those rows, and
//! [`faults`] keeps a panic in one of them from the others.
//!
//! ```
//! use ngram_spec::{DraftOptions, Drafter};
//!
//! let mut drafter = Drafter::new(&[10, 11, 12, 13, 14, 7], DraftOptions::default())?;
//! drafter.extend(&[10, 11, 12])?; // the target model has begun to quote the prompt
//! assert_eq!(drafter.draft(4).token_ids, [13, 14, 7, 10]);
//! # Ok::<(), ngram_spec::Error>(())
//! ```

pub mod error;

pub mod edges;

pub mod automaton;

pub mod matcher;

pub mod copying;

pub mod features;

mod walk;

mod prior;

pub mod acceptance;

pub mod policy;

pub mod drafter;

mod rows;

pub mod faults;

pub mod pool;

pub use acceptance::AcceptanceModel;
pub use automaton::{StateId, SuffixAutomaton, TokenId};
pub use drafter::{Draft, DraftOptions, Drafter};
pub use error::Error;
pub use faults::Fault;
pub use features::{Feature, Features};
pub use policy::{CostCurve, DraftCost};
pub use pool::{DrafterPool, PoolOptions, PoolStats, Row};

//! What took place in a run, so that a test can show that it did.

use std::collections::BTreeMap;

/// What can happen in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Joined,
    /// With the same tokens as another row.
    JoinedAsCopy,
    PrefilledInPart,
    AcceptedAll,
    AcceptedSome,
    AcceptedNone,
    Finished,
    /// A new request took the row of one that had finished, in the same step.
    TookTheGap,
    /// The last row moved into the gap.
    Condensed,
    Swapped,
    Preempted,
    ResumedInPlace,
    ResumedElsewhere,
    /// Same place, same length, same beginning.
    ReplacedAtTheEnd,
    /// Same place, same length, same beginning, same end.
    ReplacedInTheMiddle,
    Shrunk,
    Jumped,
    Skipped,
    /// The longest row left no room for drafts, so the engine asked for none.
    SkippedNearTheLimit,
    DirtiedWithDrafts,
    DirtiedWithOtherText,
    /// A row longer than is compared as a whole took a step.
    LongRow,
    // What the check counts:
    Called,
    RowStep,
    Drafted,
    /// No draft, since the row was still being indexed.
    StillIndexed,
    ComparedWithFresh,
    LongComparedWithFresh,
}

impl Event {
    pub(crate) const ALL: [Self; 28] = [
        Self::Joined,
        Self::JoinedAsCopy,
        Self::PrefilledInPart,
        Self::AcceptedAll,
        Self::AcceptedSome,
        Self::AcceptedNone,
        Self::Finished,
        Self::TookTheGap,
        Self::Condensed,
        Self::Swapped,
        Self::Preempted,
        Self::ResumedInPlace,
        Self::ResumedElsewhere,
        Self::ReplacedAtTheEnd,
        Self::ReplacedInTheMiddle,
        Self::Shrunk,
        Self::Jumped,
        Self::Skipped,
        Self::SkippedNearTheLimit,
        Self::DirtiedWithDrafts,
        Self::DirtiedWithOtherText,
        Self::LongRow,
        Self::Called,
        Self::RowStep,
        Self::Drafted,
        Self::StillIndexed,
        Self::ComparedWithFresh,
        Self::LongComparedWithFresh,
    ];
}

/// How often each event took place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(BTreeMap<Event, u64>);

impl Counts {
    pub(crate) fn note(&mut self, event: Event) {
        *self.0.entry(event).or_default() += 1;
    }

    pub(crate) fn of(&self, event: Event) -> u64 {
        self.0.get(&event).copied().unwrap_or(0)
    }
}

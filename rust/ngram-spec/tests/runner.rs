//! A pool behind a simulated model runner drafts like fresh drafters, and never what only a departed request knew.
//!
//! `NGRAM_SPEC_STEPS` (rows times steps) makes the run longer, `NGRAM_SPEC_SEED` another one.

#![allow(missing_docs, clippy::unwrap_used)]

mod simulated;

use ngram_spec::{Drafter, DrafterPool, PoolOptions, Row, TokenId};
use simulated::{Call, Counts, Event, MAX_DRAFT_TOKENS, MAX_MODEL_LEN, MAX_NUM_SEQS, Rng, Runner, Text, options};

/// Tokens that a call indexes at most for rows that are far behind, together.
const MAX_INDEXED_PER_CALL: u64 = 8_192;
/// A row that is behind by no more than this is always brought up to date.
const MAX_CATCH_UP: u64 = 256;
/// Room for the live rows and some of the departed ones, so that indexes are dropped too.
const MAX_BYTES: usize = 96 << 20;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// What the runner calls after each step.
trait Proposer {
    fn propose(&mut self, call: &Call<'_>) -> Vec<Vec<TokenId>>;

    /// Tokens indexed so far.
    fn num_indexed_tokens(&self) -> u64;
}

/// The pool, called as engines call it. A faulty adapter reads past the end of each row.
struct Pooled {
    pool: DrafterPool,
    num_read_past_end: usize,
}

impl Pooled {
    fn new(num_read_past_end: usize) -> Self {
        let limits = PoolOptions { max_bytes: MAX_BYTES, max_context_len: Some(MAX_MODEL_LEN), vocab_size: None };
        Self { pool: DrafterPool::new(limits, options()).unwrap(), num_read_past_end }
    }
}

impl Proposer for Pooled {
    fn propose(&mut self, call: &Call<'_>) -> Vec<Vec<TokenId>> {
        let lens = call.num_tokens.iter().map(|len| len + self.num_read_past_end);
        let rows: Vec<_> = lens
            .enumerate()
            .map(|(at, len)| Row {
                tokens: call.row(at, len),
                num_sampled: u32::try_from(call.num_sampled[at]).unwrap(),
                max_draft_tokens: u32::try_from(call.max_draft_tokens).unwrap(),
            })
            .collect();
        self.pool.propose(&rows).iter().map(|draft| draft.token_ids.clone()).collect()
    }

    fn num_indexed_tokens(&self) -> u64 {
        self.pool.stats().num_indexed_tokens
    }
}

/// A faulty proposer: the row stands for the request as long as the last few tokens of what it knows are still there.
struct TrustsRows {
    drafters: Vec<Drafter>,
    num_compared: usize,
}

impl TrustsRows {
    fn new(num_compared: usize) -> Self {
        Self { drafters: vec![Drafter::new(&[], options()).unwrap(); MAX_NUM_SEQS], num_compared }
    }
}

impl Proposer for TrustsRows {
    fn propose(&mut self, call: &Call<'_>) -> Vec<Vec<TokenId>> {
        let rows = call.num_tokens.iter().enumerate();
        rows.map(|(at, &len)| {
            let (row, drafter) = (call.row(at, len), &mut self.drafters[at]);
            let known = drafter.tokens();
            let tail = known.len().saturating_sub(self.num_compared);
            if known.len() <= len && known[tail..] == row[tail..known.len()] {
                drafter.extend(&row[known.len()..]).unwrap();
            } else if self.num_compared > 0 || known.len() > len {
                *drafter = Drafter::new(row, options()).unwrap();
            }
            drafter.draft(call.limit(at)).token_ids
        })
        .collect()
    }

    fn num_indexed_tokens(&self) -> u64 {
        0
    }
}

/// A faulty proposer: it has no drafts.
struct Silent;

impl Proposer for Silent {
    fn propose(&mut self, call: &Call<'_>) -> Vec<Vec<TokenId>> {
        vec![Vec::new(); call.num_tokens.len()]
    }

    fn num_indexed_tokens(&self) -> u64 {
        0
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// Not one draft per row.
    NumDrafts,
    /// More was indexed in one call than may be.
    Stall,
    /// A token that this request has never had.
    Departed,
    /// Not what a fresh drafter drafts.
    Differs,
    /// No draft, and no index that was being built could explain it.
    Missing,
}

/// What answers are held against. Departed tokens are looked for in both cases; alone it shows that they are found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Against {
    FreshDrafters,
    DepartedTokens,
}

/// Runs until so many row-steps have been checked; an error says where the first fault is.
fn check(proposer: &mut impl Proposer, against: Against, num_row_steps: u64) -> Result<Counts, (Fault, String)> {
    let seed = env("NGRAM_SPEC_SEED", 1);
    let mut runner = Runner::new(seed);
    while runner.counts.of(Event::RowStep) < num_row_steps {
        runner.step();
        let num_indexed = proposer.num_indexed_tokens();
        let Some(call) = runner.call() else { continue };
        let drafts = proposer.propose(&call);
        let num_indexed = proposer.num_indexed_tokens() - num_indexed;
        runner.counts.note(Event::Called);
        judge(&mut runner, against, &drafts, num_indexed).map_err(|(fault, place)| {
            let num_calls = runner.counts.of(Event::Called);
            (fault, format!("NGRAM_SPEC_SEED={seed}, call {num_calls}, {place}"))
        })?;
        runner.take(drafts);
    }
    Ok(runner.counts)
}

/// Checks one answer.
fn judge(
    runner: &mut Runner,
    against: Against,
    drafts: &[Vec<TokenId>],
    num_indexed: u64,
) -> Result<(), (Fault, String)> {
    let num_rows = runner.rows.len();
    if drafts.len() != num_rows {
        return Err((Fault::NumDrafts, format!("{} drafts for {num_rows} rows", drafts.len())));
    }
    if num_indexed > MAX_INDEXED_PER_CALL + MAX_CATCH_UP * num_rows as u64 {
        return Err((Fault::Stall, format!("{num_indexed} tokens indexed for {num_rows} rows")));
    }
    let max_draft_tokens = runner.max_draft_tokens();
    for (at, draft) in drafts.iter().enumerate() {
        runner.counts.note(Event::RowStep);
        let request = &mut runner.rows[at];
        let len = request.tokens().len();
        let expected = request.expected(max_draft_tokens);
        let place = || format!("row {at} of {len} tokens: {draft:?} instead of {expected:?}");
        if !draft.iter().all(|&token| request.knows(token)) {
            return Err((Fault::Departed, place()));
        }
        if against == Against::DepartedTokens {
            continue;
        }
        if *draft == expected {
            if !draft.is_empty() {
                runner.counts.note(Event::Drafted);
            }
        } else if !draft.is_empty() {
            return Err((Fault::Differs, place()));
        } else if num_indexed < MAX_INDEXED_PER_CALL {
            // A row stays behind only in a call that has indexed all it may.
            return Err((Fault::Missing, place()));
        } else {
            runner.counts.note(Event::StillIndexed);
        }
        compare_with_fresh(runner, at, &expected);
    }
    Ok(())
}

/// Now and then the simulation itself is compared with a drafter that is really new, and with its own buffer.
fn compare_with_fresh(runner: &mut Runner, at: usize, expected: &[TokenId]) {
    let len = runner.rows[at].tokens().len();
    if expected.is_empty() || runner.rng.below(if len > 4_000 { 2_000 } else { 200 }) > 0 {
        return;
    }
    let tokens = runner.rows[at].tokens();
    let mut fresh = Drafter::new(tokens, options()).unwrap();
    let limit = simulated::draft_limit(runner.max_draft_tokens(), len);
    assert_eq!(fresh.draft(limit).token_ids, expected);
    assert!(runner.holds(at));
    let event = if len > 4_000 { Event::LongComparedWithFresh } else { Event::ComparedWithFresh };
    runner.counts.note(event);
}

#[test]
fn a_million_row_steps_of_a_model_runner_draft_like_fresh_drafters() {
    let mut proposer = Pooled::new(0);
    let counts = check(&mut proposer, Against::FreshDrafters, env("NGRAM_SPEC_STEPS", 1_000_000)).unwrap();
    let stats = proposer.pool.stats();
    println!("{counts:?}\n{stats:?}");
    for event in Event::ALL {
        assert!(counts.of(event) > 0, "{event:?} never took place: {counts:?}");
    }
    assert_eq!((stats.num_unindexed_rows, stats.num_invalid_rows), (0, 0));
    assert!(stats.num_evictions > 0 && stats.num_bytes <= MAX_BYTES as u64, "{stats:?}");
    assert!(counts.of(Event::Drafted) > counts.of(Event::RowStep) / 2, "{counts:?}");
    assert!(counts.of(Event::StillIndexed) < counts.of(Event::Drafted) / 50, "{counts:?}");
}

/// Both checks find the fault, each by itself.
fn assert_found<P: Proposer>(faulty: impl Fn() -> P) {
    const NUM_ROW_STEPS: u64 = 1_000_000; // the first fault ends the run, much sooner
    assert!(check(&mut faulty(), Against::FreshDrafters, NUM_ROW_STEPS).is_err());
    let (fault, place) = check(&mut faulty(), Against::DepartedTokens, NUM_ROW_STEPS).unwrap_err();
    assert_eq!(fault, Fault::Departed, "{place}");
}

#[test]
fn reading_past_the_end_of_rows_is_found() {
    assert_found(|| Pooled::new(3));
}

#[test]
fn taking_a_row_for_the_request_that_was_there_before_is_found() {
    assert_found(|| TrustsRows::new(0));
}

#[test]
fn comparing_only_the_end_of_what_a_row_was_is_found() {
    assert_found(|| TrustsRows::new(8));
}

#[test]
fn drafting_nothing_is_found() {
    let (fault, place) = check(&mut Silent, Against::FreshDrafters, 1_000_000).unwrap_err();
    assert_eq!(fault, Fault::Missing, "{place}");
}

/// A row of the batch that long prompts join.
struct Decoding {
    twin: Drafter,
    text: Text,
    draft: Vec<TokenId>,
    num_to_prefill: usize,
}

impl Decoding {
    fn new(prompt: &[TokenId], text: Text, num_to_prefill: usize) -> Self {
        Self { twin: Drafter::new(prompt, options()).unwrap(), text, draft: Vec::new(), num_to_prefill }
    }

    fn limit(&self) -> u32 {
        if self.num_to_prefill > 0 { 0 } else { u32::try_from(MAX_DRAFT_TOKENS).unwrap() }
    }

    /// Accepts some of the draft and adds a token. Returns how many tokens came.
    fn decode(&mut self, rng: &mut Rng) -> usize {
        let num_accepted = rng.below(self.draft.len() + 1);
        self.twin.extend(&self.draft[..num_accepted]).unwrap();
        let token = self.text.next(self.twin.tokens(), rng);
        self.twin.extend(&[token]).unwrap();
        num_accepted + 1
    }
}

#[test]
fn prompts_of_131072_tokens_that_join_64_decoding_rows_are_indexed_in_slices_while_they_are_prefilled() {
    const PROMPT_LEN: usize = 131_072;
    const PREFILLED_PER_STEP: usize = 4_096;
    const SHORT_LEN: usize = 250; // indexed at once
    let mut rng = Rng(env("NGRAM_SPEC_SEED", 1));
    let mut rows: Vec<_> = (0..64)
        .map(|serial| {
            let (mut text, mut prompt) = (Text::new(serial, &mut rng), Vec::new());
            text.fill(&mut prompt, SHORT_LEN, &mut rng);
            Decoding::new(&prompt, text, 0)
        })
        .collect();
    let any: Vec<TokenId> = (0..PROMPT_LEN).map(|_| rng.id_below(5_000)).collect();
    let periodic = (0..1_000).cycle().take(PROMPT_LEN).collect();
    // One prompt joins alone, then two in the same step.
    let mut joining = vec![(10, any), (60, periodic), (60, vec![7; PROMPT_LEN])];

    let mut pool = DrafterPool::new(PoolOptions::default(), options()).unwrap();
    let (mut num_behind, mut num_slices, mut num_drafts, mut num_long_drafts) = (0, 0, 0, 0);
    for step in 0..140 {
        // Rows move while an index is half built; nothing is begun again.
        rows.rotate_left(step % 7);
        let mut num_new = if step == 0 { rows.len() * SHORT_LEN } else { 0 };
        for (_, prompt) in joining.extract_if(.., |(at, _)| *at == step) {
            let text = Text::new(TokenId::try_from(1_000 + step).unwrap(), &mut rng);
            rows.push(Decoding::new(&prompt, text, PROMPT_LEN));
            num_behind += PROMPT_LEN;
        }
        if let Some(row) = rows.iter_mut().find(|row| row.num_to_prefill > 0) {
            row.num_to_prefill -= PREFILLED_PER_STEP;
        }
        num_new += rows.iter_mut().filter(|row| row.num_to_prefill == 0).map(|row| row.decode(&mut rng)).sum::<usize>();

        let before = pool.stats().num_indexed_tokens;
        let calls: Vec<_> = rows
            .iter()
            .map(|row| Row { tokens: row.twin.tokens(), num_sampled: 1, max_draft_tokens: row.limit() })
            .collect();
        let drafts: Vec<_> = pool.propose(&calls).iter().map(|draft| draft.token_ids.clone()).collect();
        let num_indexed = usize::try_from(pool.stats().num_indexed_tokens - before).unwrap();
        let slice_len = num_behind.min(usize::try_from(MAX_INDEXED_PER_CALL).unwrap());
        assert_eq!(num_indexed, num_new + slice_len, "step {step}");
        num_behind -= slice_len;
        num_slices += usize::from(slice_len > 0);

        for (row, draft) in rows.iter_mut().zip(drafts) {
            // Neither do decoding rows go without, nor the long ones once they decode.
            let limit = row.limit();
            assert_eq!(draft, row.twin.draft(limit).token_ids, "step {step}");
            num_drafts += usize::from(!draft.is_empty());
            num_long_drafts += usize::from(!draft.is_empty() && row.twin.tokens().len() > PROMPT_LEN);
            row.draft = draft;
        }
    }
    assert_eq!((num_slices, rows.len(), num_behind), (3 * 16, 67, 0));
    assert!(num_drafts > 64 * 100 && num_long_drafts > 50, "{num_drafts}, {num_long_drafts}");
}

//! A model runner as engines have one: a buffer of rows without identity, and all that becomes of them.

mod events;
mod request;
mod text;

use ngram_spec::{Drafter, TokenId};

pub(crate) use events::{Counts, Event};
use request::{Request, foreign};
pub(crate) use request::{draft_limit, options};
pub(crate) use text::{Rng, Text};

pub(crate) const MAX_NUM_SEQS: usize = 32;
pub(crate) const MAX_MODEL_LEN: usize = 24_576;
/// Upper limit of draft tokens in any call.
pub(crate) const MAX_DRAFT_TOKENS: usize = 12;
/// Rows up to this length are compared as a whole in every call. A longer one that is replaced in its middle alone, in
/// the same place and with the same end, is noticed later by design, so that does not happen here.
const MAX_EXACT_LEN: usize = 16_384;
/// Tokens that the target model takes in one step.
const MAX_STEP_TOKENS: usize = 2_048;

/// What the engine hands over in one call, and nothing else.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// `MAX_NUM_SEQS` rows of `MAX_MODEL_LEN` ids, dirty past a row's end.
    pub(crate) token_ids: &'a [TokenId],
    pub(crate) num_tokens: &'a [usize],
    pub(crate) num_sampled: &'a [usize],
    pub(crate) max_draft_tokens: usize,
}

impl<'a> Call<'a> {
    /// The first `len` ids of a row, to its end or past it.
    pub(crate) fn row(&self, at: usize, len: usize) -> &'a [TokenId] {
        &self.token_ids[at * MAX_MODEL_LEN..(at + 1) * MAX_MODEL_LEN][..len.min(MAX_MODEL_LEN)]
    }

    /// Upper limit of the draft for a row, none while nothing is sampled; the pool sees to what the context has room for.
    pub(crate) fn limit(&self, at: usize) -> u32 {
        if self.num_sampled[at] == 0 { 0 } else { u32::try_from(self.max_draft_tokens).unwrap() }
    }
}

/// The runner: requests in rows, requests that wait, and the buffer.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) rng: Rng,
    pub(crate) counts: Counts,
    pub(crate) rows: Vec<Request>,
    preempted: Vec<Request>,
    token_ids: Vec<TokenId>,
    num_tokens: Vec<usize>,
    num_sampled: Vec<usize>,
    max_draft_tokens: usize,
    system_prompts: Vec<Vec<TokenId>>,
    num_requests: TokenId,
    num_to_skip: usize,
}

impl Runner {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let system_prompts = text::system_prompts(&mut rng);
        Self {
            rng,
            counts: Counts::default(),
            rows: Vec::new(),
            preempted: Vec::new(),
            token_ids: vec![0; MAX_NUM_SEQS * MAX_MODEL_LEN],
            num_tokens: Vec::new(),
            num_sampled: Vec::new(),
            max_draft_tokens: MAX_DRAFT_TOKENS,
            system_prompts,
            num_requests: 0,
            num_to_skip: 0,
        }
    }

    /// One step of the engine: requests come, go and move, then the target model runs.
    pub(crate) fn step(&mut self) {
        self.remove_finished();
        self.admit();
        self.disturb();
        self.run_target_model();
        self.dirty();
    }

    /// What a proposer is called with after this step; none when the engine skips the call.
    pub(crate) fn call(&mut self) -> Option<Call<'_>> {
        if self.rows.iter().any(|request| request.tokens().len() + MAX_DRAFT_TOKENS > MAX_MODEL_LEN) {
            self.counts.note(Event::SkippedNearTheLimit);
            return None;
        }
        if self.num_to_skip == 0 && self.rng.percent(2) {
            self.num_to_skip = self.rng.between(1, 5);
        }
        if self.num_to_skip > 0 {
            self.num_to_skip -= 1;
            self.counts.note(Event::Skipped);
            return None;
        }
        self.max_draft_tokens =
            if self.rng.percent(80) { MAX_DRAFT_TOKENS } else { self.rng.between(1, MAX_DRAFT_TOKENS) };
        self.num_tokens = self.rows.iter().map(|request| request.tokens().len()).collect();
        self.num_sampled = self.rows.iter().map(|request| request.num_sampled).collect();
        Some(Call {
            token_ids: &self.token_ids,
            num_tokens: &self.num_tokens,
            num_sampled: &self.num_sampled,
            max_draft_tokens: self.max_draft_tokens,
        })
    }

    /// Takes the answer to the call.
    pub(crate) fn take(&mut self, drafts: Vec<Vec<TokenId>>) {
        for (request, draft) in self.rows.iter_mut().zip(drafts) {
            request.draft = draft;
            request.is_settled = true;
        }
    }

    pub(crate) fn max_draft_tokens(&self) -> usize {
        self.max_draft_tokens
    }

    /// Whether the buffer holds what the request in that row consists of.
    pub(crate) fn holds(&self, at: usize) -> bool {
        let tokens = self.rows[at].tokens();
        self.token_ids[at * MAX_MODEL_LEN..][..tokens.len()] == *tokens
    }

    fn write(&mut self, at: usize, from: usize, tokens: &[TokenId]) {
        let row = &mut self.token_ids[at * MAX_MODEL_LEN..(at + 1) * MAX_MODEL_LEN];
        let end = (from + tokens.len()).min(row.len());
        row[from..end].copy_from_slice(&tokens[..end - from]);
    }

    /// Writes the request's tokens into the row; what stood there remains behind them.
    fn place(&mut self, at: usize, request: Request) {
        self.write(at, 0, request.tokens());
        if at == self.rows.len() { self.rows.push(request) } else { self.rows[at] = request }
    }

    fn remove_finished(&mut self) {
        for at in (0..self.rows.len()).rev() {
            if self.rows[at].num_left > 0 && self.rows[at].tokens().len() < MAX_MODEL_LEN {
                continue;
            }
            self.counts.note(Event::Finished);
            if self.rng.percent(50) {
                self.counts.note(Event::TookTheGap);
                let request = self.new_request();
                self.place(at, request);
            } else {
                self.condense(at);
            }
        }
    }

    /// Empties a row; the last row moves there.
    fn condense(&mut self, at: usize) -> Request {
        let last = self.rows.len() - 1;
        if at < last {
            self.counts.note(Event::Condensed);
            let start = last * MAX_MODEL_LEN;
            let len = self.rows[last].tokens().len();
            self.token_ids.copy_within(start..start + len, at * MAX_MODEL_LEN);
        }
        self.rows.swap_remove(at)
    }

    fn admit(&mut self) {
        while self.rows.len() < MAX_NUM_SEQS && self.rng.percent(40) {
            let at = self.rows.len();
            if self.preempted.is_empty() || self.rng.percent(50) {
                self.counts.note(Event::Joined);
                let request = self.new_request();
                self.place(at, request);
                continue;
            }
            let which = self.rng.below(self.preempted.len());
            let mut request = self.preempted.swap_remove(which);
            let is_elsewhere = request.last_row != at;
            self.counts.note(if is_elsewhere { Event::ResumedElsewhere } else { Event::ResumedInPlace });
            request.prefill_len = request.tokens().len();
            request.num_prefilled = self.num_cached(request.prefill_len);
            self.place(at, request);
        }
    }

    fn new_request(&mut self) -> Request {
        let mut text = self.new_text();
        if !self.rows.is_empty() && self.rng.percent(10) {
            self.counts.note(Event::JoinedAsCopy);
            let which = self.rng.below(self.rows.len());
            let prompt = self.rows[which].tokens().to_vec();
            let inherited = foreign(&prompt, &text);
            return self.request(&prompt, text, inherited);
        }
        let prompt = text::prompt(&mut text, &self.system_prompts, MAX_MODEL_LEN - 1, &mut self.rng);
        self.request(&prompt, text, Vec::new())
    }

    fn new_text(&mut self) -> Text {
        self.num_requests += 1;
        Text::new(self.num_requests, &mut self.rng)
    }

    fn request(&mut self, prompt: &[TokenId], text: Text, inherited: Vec<TokenId>) -> Request {
        Request {
            twin: Drafter::new(prompt, options()).unwrap(),
            text,
            inherited,
            num_prefilled: self.num_cached(prompt.len()),
            prefill_len: prompt.len(),
            num_left: self.rng.between(1, 600),
            draft: Vec::new(),
            num_sampled: 0,
            is_settled: false,
            cut_token: None,
            last_row: 0,
        }
    }

    /// A prefix cache can hold all of a prompt but its last token, so that it samples in its first step.
    fn num_cached(&mut self, len: usize) -> usize {
        if self.rng.percent(40) { len - 1 } else { 0 }
    }

    fn disturb(&mut self) {
        let Some(last) = self.rows.len().checked_sub(1) else { return };
        let (at, other) = (self.rng.below(last + 1), self.rng.below(last + 1));
        match self.rng.below(100) {
            0..10 if at != other => self.swap(at, other),
            10..14 => {
                self.counts.note(Event::Preempted);
                let mut request = self.condense(at);
                request.draft.clear();
                request.last_row = at;
                self.preempted.push(request);
            }
            14..24 => self.replace(at),
            24..28 if self.rows[at].is_settled => self.shrink(at),
            28..32 if self.rows[at].is_settled => self.jump(at),
            _ => {}
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.counts.note(Event::Swapped);
        self.rows.swap(a, b);
        let len = self.rows[a].tokens().len().max(self.rows[b].tokens().len());
        for at in 0..len {
            self.token_ids.swap(a * MAX_MODEL_LEN + at, b * MAX_MODEL_LEN + at);
        }
    }

    /// The row's request is gone; another one of the same length, with most of the same tokens, stands there.
    fn replace(&mut self, at: usize) {
        let mut tokens = self.rows[at].tokens().to_vec();
        let len = tokens.len();
        let mut text = self.new_text();
        let is_in_the_middle = len > 4 && len <= MAX_EXACT_LEN && self.rng.percent(50);
        let num_kept = self.rng.between(len / 2, len);
        let end = tokens.split_off(if is_in_the_middle { self.rng.between(num_kept, len) } else { len });
        let filled_len = tokens.len();
        if filled_len == num_kept && is_in_the_middle {
            return;
        }
        tokens.truncate(num_kept);
        text.fill(&mut tokens, filled_len, &mut self.rng);
        tokens.extend(end);
        self.counts.note(if is_in_the_middle { Event::ReplacedInTheMiddle } else { Event::ReplacedAtTheEnd });
        let inherited = foreign(&tokens, &text);
        let request = self.request(&tokens, text, inherited);
        self.place(at, request);
    }

    fn shrink(&mut self, at: usize) {
        let request = &mut self.rows[at];
        let len = request.tokens().len();
        let by = if self.rng.percent(80) { self.rng.between(1, 100) } else { self.rng.between(1, len + 1) };
        let Some(new_len) = len.checked_sub(by).filter(|&new_len| new_len > 0) else { return };
        self.counts.note(Event::Shrunk);
        request.cut_token = Some(request.tokens()[new_len]);
        request.twin = Drafter::new(&request.tokens()[..new_len], options()).unwrap();
        request.inherited = foreign(request.tokens(), &request.text);
        request.prefill_len = new_len;
        request.draft.clear();
        request.is_settled = false;
    }

    fn jump(&mut self, at: usize) {
        let Request { twin, text, .. } = &mut self.rows[at];
        let mut tokens = twin.tokens().to_vec();
        let len = tokens.len();
        let new_len =
            len + if self.rng.percent(90) { self.rng.between(130, 600) } else { self.rng.between(600, 10_000) };
        if new_len + 2 * MAX_DRAFT_TOKENS > MAX_MODEL_LEN {
            return;
        }
        self.counts.note(Event::Jumped);
        text.fill(&mut tokens, new_len, &mut self.rng);
        twin.extend(&tokens[len..]).unwrap();
        self.rows[at].is_settled = false;
        self.rows[at].draft.clear();
        self.write(at, len, &tokens[len..]);
    }

    fn run_target_model(&mut self) {
        let mut budget = MAX_STEP_TOKENS;
        for at in 0..self.rows.len() {
            let request = &mut self.rows[at];
            let num_prefilled = budget.min(request.prefill_len.saturating_sub(request.num_prefilled));
            budget -= num_prefilled;
            request.num_prefilled += num_prefilled;
            if request.num_prefilled < request.prefill_len {
                self.counts.note(Event::PrefilledInPart);
                request.num_sampled = 0;
                continue;
            }
            self.verify(at);
        }
    }

    /// The target model accepts some of the draft and adds a token; what it rejects stays in the buffer behind them.
    fn verify(&mut self, at: usize) {
        let draft = std::mem::take(&mut self.rows[at].draft);
        let len = self.rows[at].tokens().len();
        self.write(at, len, &draft);
        let num_accepted = if self.rng.percent(50) { draft.len() } else { self.rng.below(draft.len() + 1) }
            .min(MAX_MODEL_LEN - len - 1);
        if !draft.is_empty() {
            self.counts.note(match num_accepted {
                0 => Event::AcceptedNone,
                _ if num_accepted == draft.len() => Event::AcceptedAll,
                _ => Event::AcceptedSome,
            });
        }
        if num_accepted + 1 < draft.len() {
            self.counts.note(Event::DirtiedWithDrafts);
        }
        if len > MAX_EXACT_LEN {
            self.counts.note(Event::LongRow);
        }
        let request = &mut self.rows[at];
        request.twin.extend(&draft[..num_accepted]).unwrap();
        let mut token = request.text.next(request.twin.tokens(), &mut self.rng);
        if let Some(cut_token) = request.cut_token.take() {
            while token == cut_token {
                token = request.text.own(&mut self.rng);
            }
        }
        request.twin.extend(&[token]).unwrap();
        request.num_sampled = num_accepted + 1;
        request.num_left = request.num_left.saturating_sub(num_accepted + 1);
        self.write(at, len + num_accepted, &[token]);
    }

    /// Leaves the end of another request's text behind a row.
    fn dirty(&mut self) {
        let Some(last) = self.rows.len().checked_sub(1) else { return };
        let (at, other) = (self.rng.below(last + 1), self.rng.below(last + 1));
        let len = self.rows[at].tokens().len();
        if at != other && len < MAX_MODEL_LEN {
            self.counts.note(Event::DirtiedWithOtherText);
            let tokens = self.rows[other].tokens();
            let tokens = tokens[tokens.len().saturating_sub(100)..].to_vec();
            self.write(at, len, &tokens);
        }
    }
}

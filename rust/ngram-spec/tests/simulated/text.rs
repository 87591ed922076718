//! Random numbers, and what requests and responses consist of.

use ngram_spec::TokenId;

/// Ids below this may stand in any request.
pub(crate) const NUM_SHARED: TokenId = 80;
/// Shared ids from here on are placeholders, which stand in long runs.
const FIRST_PLACEHOLDER: TokenId = 72;
/// Ids that stand in one request only.
const NUM_OWN: TokenId = 8;

/// A small generator of random numbers (splitmix64), so that a seed tells the whole story on every machine.
#[derive(Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    pub(crate) fn between(&mut self, start: usize, end: usize) -> usize {
        start + self.below(end - start)
    }

    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn id_below(&mut self, end: TokenId) -> TokenId {
        TokenId::try_from(self.below(usize::try_from(end).unwrap())).unwrap()
    }
}

/// How the text of one request goes on.
#[derive(Clone, Debug)]
enum Style {
    /// A few tokens of its own and shared ones in any order.
    Mixed,
    Periodic(Vec<TokenId>),
    /// Spans of the context, from this place on, with a token of its own between them.
    Quoting(usize),
}

/// Writes the text of one request.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    first_own: TokenId,
    style: Style,
}

impl Text {
    pub(crate) fn new(serial: TokenId, rng: &mut Rng) -> Self {
        let mut text = Self { first_own: NUM_SHARED + serial * NUM_OWN, style: Style::Mixed };
        text.style = match rng.below(10) {
            0..5 => Style::Mixed,
            5 => Style::Periodic(vec![text.own(rng)]),
            6 => {
                let pattern = (1..rng.between(2, 30)).map(|_| text.mixed(rng));
                Style::Periodic(pattern.chain([text.first_own]).collect())
            }
            _ => Style::Quoting(0),
        };
        text
    }

    pub(crate) fn owns(&self, token: TokenId) -> bool {
        (self.first_own..self.first_own + NUM_OWN).contains(&token)
    }

    /// A token that stands in this request only.
    pub(crate) fn own(&self, rng: &mut Rng) -> TokenId {
        self.first_own + rng.id_below(NUM_OWN)
    }

    fn mixed(&self, rng: &mut Rng) -> TokenId {
        match rng.below(8) {
            0..4 => self.own(rng),
            4..7 => rng.id_below(8),
            _ => rng.id_below(FIRST_PLACEHOLDER),
        }
    }

    /// The token that comes after `context`.
    pub(crate) fn next(&mut self, context: &[TokenId], rng: &mut Rng) -> TokenId {
        match &mut self.style {
            Style::Mixed => self.mixed(rng),
            Style::Periodic(pattern) => pattern[context.len() % pattern.len()],
            Style::Quoting(from) => {
                if rng.percent(5) || *from >= context.len() {
                    *from = rng.below(context.len().max(1));
                    return self.own(rng);
                }
                *from += 1;
                context[*from - 1]
            }
        }
    }

    /// Appends tokens up to that length; the first and the last stand in this request only.
    pub(crate) fn fill(&mut self, context: &mut Vec<TokenId>, len: usize, rng: &mut Rng) {
        let start = context.len();
        while context.len() < len {
            let ends = context.len() == start || context.len() + 1 == len;
            let token = if ends { self.own(rng) } else { self.next(context, rng) };
            context.push(token);
        }
    }
}

/// Prompts that many requests begin with.
pub(crate) fn system_prompts(rng: &mut Rng) -> Vec<Vec<TokenId>> {
    [40, 300, 900, 2_500].map(|len| (0..len).map(|_| rng.id_below(FIRST_PLACEHOLDER)).collect()).to_vec()
}

/// A new request's prompt, shorter than `max_len`.
pub(crate) fn prompt(text: &mut Text, system_prompts: &[Vec<TokenId>], max_len: usize, rng: &mut Rng) -> Vec<TokenId> {
    let mut prompt = Vec::new();
    if rng.percent(60) {
        prompt.extend(&system_prompts[rng.below(system_prompts.len())]);
    }
    let len = match rng.below(1_000) {
        0..300 => rng.between(1, 60),
        300..980 => rng.between(60, 600),
        980..990 => rng.between(8_000, 14_000),
        _ => rng.between(16_500, max_len - prompt.len()),
    };
    if rng.percent(10) && len < 8_000 {
        // What stands for an image: many requests have the same run.
        prompt.extend(std::iter::repeat_n(FIRST_PLACEHOLDER + rng.id_below(2), len));
    }
    let len = (prompt.len() + len).min(max_len - 1);
    text.fill(&mut prompt, len, rng);
    prompt
}

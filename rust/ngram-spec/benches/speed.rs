//! Speed and memory of the core on real text, beside a plain prompt-lookup scan, with the limits that it must keep.
//!
//! `make bench` writes the text; by hand: `python benches/text.py target/bench_tokens.bin && cargo bench`.

#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ngram_spec::{AcceptanceModel, DraftCost, DraftOptions, Drafter, DrafterPool, PoolOptions, Row, TokenId};

const TOKENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench_tokens.bin");

fn options() -> DraftOptions {
    // Without a cost per token the drafter drafts all it may.
    DraftOptions { max_draft_tokens: 8, draft_cost: DraftCost::per_token(0.0).unwrap(), ..DraftOptions::default() }
}

fn text() -> Vec<TokenId> {
    let bytes = std::fs::read(TOKENS).unwrap_or_else(|error| panic!("{TOKENS}: {error}; `make bench` writes it"));
    bytes.chunks_exact(4).map(|bytes| TokenId::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Prompt lookup: the last five to two tokens, looked for from the left.
fn prompt_lookup(context: &[TokenId]) -> Option<&[TokenId]> {
    (2..=5).rev().find_map(|len| {
        let (rest, suffix) = context.split_at(context.len() - len);
        let start = rest.iter().enumerate().position(|(at, _)| context[at..].starts_with(suffix))?;
        Some(&context[start + len..(start + len + 8).min(context.len())])
    })
}

fn quantile(times: &mut [Duration], q: f64) -> f64 {
    times.sort();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an index
    let at = ((times.len() - 1) as f64 * q) as usize;
    times[at].as_secs_f64() * 1e6
}

fn mean(times: &[Duration]) -> f64 {
    times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64
}

/// Prints a figure beside its limit and remembers whether it kept it.
struct Report {
    num_failed: usize,
}

impl Report {
    fn line(&mut self, name: &str, value: f64, unit: &str, limit: f64) {
        let verdict = if value <= limit { "ok" } else { "OVER ITS LIMIT" };
        self.num_failed += usize::from(value > limit);
        println!("{name:<58}{value:>10.3} {unit:<12} limit {limit:<8} {verdict}");
    }
}

fn one_request(text: &[TokenId], report: &mut Report) {
    for context_len in [4_096, 32_768, 131_072] {
        let (context, rest) = text[..context_len + 3_000].split_at(context_len);
        let mut builds: Vec<_> = (0..9)
            .map(|_| {
                let start = Instant::now();
                black_box(Drafter::new(black_box(context), options()).unwrap());
                start.elapsed()
            })
            .collect();
        let build = quantile(&mut builds, 0.5) / context_len as f64;
        report.line(&format!("index a prompt, {context_len} tokens"), build, "us per token", 0.2);

        let drafter = Drafter::new(context, options()).unwrap();
        let bytes = drafter.num_bytes() as f64 / context_len as f64;
        report.line(&format!("memory, {context_len} tokens"), bytes, "B per token", 64.0);
        // Whatever else the machine does makes a round slower and never faster, so the best of several is shown.
        let mut rounds: Vec<(f64, Vec<Duration>)> = (0..5).map(|_| steps(drafter.clone(), rest)).collect();
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (step, steps) = &rounds[0];
        report.line(&format!("extend 3 + draft 8, {context_len} tokens"), *step, "us", 2.0);

        let scans: Vec<_> = (context_len..context_len + 60)
            .map(|len| {
                let start = Instant::now();
                black_box(prompt_lookup(black_box(&text[..len])));
                start.elapsed()
            })
            .collect();
        let ratio = mean(&scans) / mean(steps);
        println!("    a plain prompt-lookup scan takes {ratio:.1} times as long");
    }
}

/// Times of steps that are given three tokens and draft eight, and their median in microseconds.
fn steps(mut drafter: Drafter, emitted: &[TokenId]) -> (f64, Vec<Duration>) {
    let step = |tokens: &[TokenId]| {
        let start = Instant::now();
        drafter.extend(tokens).unwrap();
        black_box(drafter.draft(8));
        start.elapsed()
    };
    let mut times: Vec<_> = emitted.chunks_exact(3).map(step).collect();
    (quantile(&mut times, 0.5), times)
}

fn propose(pool: &mut DrafterPool, rows: &[&[TokenId]]) -> Duration {
    let rows: Vec<_> = rows.iter().map(|tokens| Row { tokens, num_sampled: 1, max_draft_tokens: 8 }).collect();
    let start = Instant::now();
    black_box(pool.propose(&rows));
    start.elapsed()
}

/// 64 rows of 131,072 tokens that all grow, then one more that joins them.
fn batch(name: &str, row_text: impl Fn(usize, usize) -> Vec<TokenId>, report: &mut Report) {
    const NUM_ROWS: usize = 64;
    const LEN: usize = 131_072;
    const NUM_STEPS: usize = 500;
    let buffer: Vec<Vec<TokenId>> = (0..=NUM_ROWS).map(|row| row_text(row, LEN + NUM_STEPS)).collect();
    let rows =
        |num_rows: usize, len: usize| -> Vec<&[TokenId]> { buffer[..num_rows].iter().map(|row| &row[..len]).collect() };
    let mut pool = DrafterPool::new(PoolOptions { max_bytes: 1 << 40, ..PoolOptions::default() }, options()).unwrap();
    let mut indexing = Vec::new();
    while pool.stats().num_indexed_tokens < (NUM_ROWS * LEN) as u64 {
        indexing.push(propose(&mut pool, &rows(NUM_ROWS, LEN)));
    }
    let first = indexing[0].as_secs_f64() * 1e3;
    report.line(&format!("64 rows x 131k, {name}, first call"), first, "ms", 20.0);

    let mut steps: Vec<_> = (1..NUM_STEPS - 40).map(|step| propose(&mut pool, &rows(NUM_ROWS, LEN + step))).collect();
    let p99 = quantile(&mut steps, 0.99) / 1e3;
    report.line(&format!("64 rows x 131k, {name}, one token each, p99"), p99, "ms", 1.0);

    let joining = (NUM_STEPS - 40..NUM_STEPS).map(|step| {
        let mut rows = rows(NUM_ROWS, LEN + step);
        rows.push(&buffer[NUM_ROWS][..LEN]);
        propose(&mut pool, &rows)
    });
    let worst = joining.max().unwrap().as_secs_f64() * 1e3;
    report.line(&format!("64 rows x 131k, {name}, slowest step while one joins"), worst, "ms", 15.0);
}

/// What indexing a prompt takes from its prefill: 131,072 tokens, a slice in each call, beside an engine that prefills
/// 20,000 tokens per second.
fn prefill(text: &[TokenId], report: &mut Report) {
    const LEN: usize = 131_072;
    let round = |_| {
        let mut pool = DrafterPool::new(PoolOptions::default(), options()).unwrap();
        let mut time = Duration::ZERO;
        while pool.stats().num_indexed_tokens < LEN as u64 {
            time += propose(&mut pool, &[&text[..LEN]]);
        }
        time.as_secs_f64()
    };
    let time = (0..5).map(round).fold(f64::INFINITY, f64::min);
    let share = 100.0 * time / (LEN as f64 / 20_000.0);
    report.line("index 131k tokens in slices, of a prefill at 20k per s", share, "%", 1.0);
}

/// What drafting costs a row: 64 rows that draft 16 tokens and learn from what becomes of them, beside 64 that only
/// index what they are given.
fn policy(text: &[TokenId], report: &mut Report) {
    let round = |_| (median_step(text, 16) - median_step(text, 0)) / 64.0;
    let cost = (0..3).map(round).fold(f64::INFINITY, f64::min);
    report.line("64 rows x 2k, draft 16, learning, a row", cost, "us", 6.0);
}

fn median_step(text: &[TokenId], max_draft_tokens: u32) -> f64 {
    const LEN: usize = 2_048;
    const NUM_STEPS: usize = 500;
    let acceptance = Arc::new(AcceptanceModel::learning());
    let options = DraftOptions { max_draft_tokens: 16, acceptance, ..options() };
    let mut pool = DrafterPool::new(PoolOptions::default(), options).unwrap();
    let starts: Vec<usize> = (0..64).map(|row| row * 9_973 % (text.len() - LEN - 3 * NUM_STEPS)).collect();
    let mut steps: Vec<_> = (0..NUM_STEPS)
        .map(|step| {
            let len = LEN + 3 * step;
            let rows =
                starts.iter().map(|&start| Row { tokens: &text[start..start + len], num_sampled: 1, max_draft_tokens });
            let rows: Vec<_> = rows.collect();
            let start = Instant::now();
            black_box(pool.propose(&rows));
            start.elapsed()
        })
        .collect();
    quantile(&mut steps, 0.5)
}

/// 20,000 requests of 8,192 tokens through 64 rows under a bound of 1 GiB.
fn turnover(text: &[TokenId], report: &mut Report) {
    const MAX_BYTES: usize = 1 << 30;
    let mut pool = DrafterPool::new(PoolOptions { max_bytes: MAX_BYTES, ..PoolOptions::default() }, options()).unwrap();
    let before = resident_bytes();
    let mut peak = 0;
    // Each request starts with tokens of its own, so that none continues another.
    let request = |number: usize| -> Vec<TokenId> {
        let start = number * 37 % (text.len() - 8_192);
        let number = TokenId::try_from(number).unwrap();
        std::iter::once(number).chain(text[start..start + 8_191].iter().copied()).collect()
    };
    for wave in 0..20_000 / 64 {
        let requests: Vec<_> = (0..64).map(|row| request(wave * 64 + row)).collect();
        let rows: Vec<&[TokenId]> = requests.iter().map(Vec::as_slice).collect();
        let end = pool.stats().num_indexed_tokens + 64 * 8_192;
        while pool.stats().num_indexed_tokens < end {
            propose(&mut pool, &rows);
        }
        peak = peak.max(resident_bytes());
    }
    let growth = (peak - before) as f64 / MAX_BYTES as f64;
    report.line("20,000 requests of 8k tokens, growth over max_bytes", growth, "x", 1.1);
}

/// Resident memory of this process, from /proc; 0 where there is none.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4_096
}

fn main() {
    let text = text();
    let mut report = Report { num_failed: 0 };
    one_request(&text, &mut report);
    prefill(&text, &mut report);
    policy(&text, &mut report);
    turnover(&text, &mut report);
    batch("text", |row, len| text[row * 9_973 % (text.len() - len)..][..len].to_vec(), &mut report);
    batch("one token", |_, len| vec![7; len], &mut report);
    batch("period of 7", |_, len| (0..7).cycle().take(len).collect(), &mut report);
    assert_eq!(report.num_failed, 0, "figures over their limits");
}

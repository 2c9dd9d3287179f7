// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures a program's rate in a constant placement.
//!
//! The time in a placement is divided into chunks of at least [`CHUNK_NS`]. The spread of the
//! chunks' rates gives the error of their mean. Each move to another placement starts a new
//! measurement. The first [`SETTLE_NS`] of the measurement are ignored, because caches are cold and
//! threads still migrate.
//!
//! A *phase* of the program has ended when the program's rate permanently differs from the mean.
//! The test is Page's cumulative sum (Biometrika 41, 1954) on the logarithm of the rate: it
//! tolerates small deviations, detects a large change after two or three chunks, and a moderate
//! change a little later.
//!
//! A sample takes constant time and space. A chunk ends only when the progress figure has grown:
//! without progress, a chunk has no greatest length. A phase change is detected after three chunks
//! at the earliest. A single chunk counts with a relative standard error of 0.1.

use usher_model::{ProgramSample, ProgressSource};

/// Time after a move that is not measured.
pub const SETTLE_NS: u64 = 50_000_000;
/// The shortest chunk.
pub const CHUNK_NS: u64 = 100_000_000;
/// Deviation of the natural logarithm of a chunk's rate that counts as noise.
const SLACK: f64 = 0.10;
/// Sum of the deviations beyond `SLACK`, in natural logarithms, that indicates a new phase.
const ALARM: f64 = 0.90;
/// Least number of chunks before a change can be detected.
const CHUNKS_MIN: u32 = 3;

/// A rate measured in one placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateEstimate {
    /// Units of progress per second.
    pub rate: f64,
    /// Standard error, relative to the rate.
    pub relative_error: f64,
    /// Mean number of busy CPUs.
    pub busy_cpus: f64,
    /// Share of the time during which a runnable thread waited for a CPU; 0 if unknown.
    pub waiting: f64,
    /// Source of the progress.
    pub source: ProgressSource,
}

/// Measures a program in its present placement.
#[derive(Debug, Clone, Default)]
pub struct RateMeter {
    settled_ns: u64,
    open: Option<ProgressReading>,
    chunks: u32,
    mean: f64,
    squares: f64,
    busy_sum: f64,
    wait_sum: f64,
    above: f64,
    below: f64,
}

#[derive(Debug, Clone, Copy)]
struct ProgressReading {
    at_ns: u64,
    cpu_ns: u64,
    wait_ns: u64,
    total: f64,
    source: ProgressSource,
}

/// Effect of a sample on the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleOutcome {
    /// The estimate is unchanged: too little time has passed.
    Nothing,
    /// A chunk was added.
    Chunk,
    /// The program has entered another phase; the estimate starts again.
    NewPhase,
}

impl RateMeter {
    /// Starts a new measurement after a move.
    pub fn moved(&mut self, at_ns: u64) {
        *self = Self {
            settled_ns: at_ns + SETTLE_NS,
            ..Self::default()
        };
    }

    /// Processes a sample.
    pub fn read(&mut self, at_ns: u64, sample: &ProgramSample) -> SampleOutcome {
        let Some(progress) = sample.progress.filter(|_| at_ns >= self.settled_ns) else {
            return SampleOutcome::Nothing;
        };
        let now = ProgressReading {
            at_ns,
            cpu_ns: sample.cpu_ns,
            wait_ns: sample.wait_ns.unwrap_or(0),
            total: progress.total,
            source: progress.source,
        };
        let Some(start) = self.open.filter(|start| start.source == now.source) else {
            self.moved(at_ns);
            self.settled_ns = at_ns;
            self.open = Some(now);
            return SampleOutcome::Nothing;
        };
        if now.at_ns < start.at_ns + CHUNK_NS || now.total <= start.total {
            return SampleOutcome::Nothing;
        }
        let seconds = (now.at_ns - start.at_ns) as f64 / 1e9;
        let rate = (now.total - start.total) / seconds;
        self.open = Some(now);
        if self.is_new_phase(rate) {
            self.moved(at_ns);
            self.settled_ns = at_ns;
            self.open = Some(now);
            return SampleOutcome::NewPhase;
        }
        let share = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1e9 / seconds;
        self.busy_sum += share(start.cpu_ns, now.cpu_ns);
        self.wait_sum += share(start.wait_ns, now.wait_ns).min(1.0);
        self.add(rate);
        SampleOutcome::Chunk
    }

    /// The present estimate.
    pub fn estimate(&self) -> Option<RateEstimate> {
        let source = self.open?.source;
        if self.chunks == 0 {
            return None;
        }
        let chunks = f64::from(self.chunks);
        // A single chunk shows no spread. Neighbouring chunks of steady programs were measured to
        // differ by a tenth.
        let spread = if self.chunks == 1 {
            0.1
        } else {
            (self.squares / (chunks - 1.0)).sqrt() / self.mean
        };
        let relative_error = spread / chunks.sqrt();
        Some(RateEstimate {
            rate: self.mean,
            relative_error,
            busy_cpus: self.busy_sum / chunks,
            waiting: self.wait_sum / chunks,
            source,
        })
    }

    /// Adds a chunk to Welford's running mean and sum of squares.
    fn add(&mut self, rate: f64) {
        self.chunks += 1;
        let off = rate - self.mean;
        self.mean += off / f64::from(self.chunks);
        self.squares += off * (rate - self.mean);
    }

    fn is_new_phase(&mut self, rate: f64) -> bool {
        if self.chunks < CHUNKS_MIN {
            return false;
        }
        let off = (rate / self.mean).ln();
        self.above = (self.above + off - SLACK).max(0.0);
        self.below = (self.below - off - SLACK).max(0.0);
        self.above.max(self.below) > ALARM
    }
}

#[cfg(test)]
mod tests {
    use usher_model::{ProgramId, Progress};

    use super::*;

    fn sample(total: f64, cpu_ns: u64) -> ProgramSample {
        let progress = Some(Progress {
            total,
            source: ProgressSource::Heartbeat,
            confidence: 1.0,
        });
        ProgramSample {
            id: ProgramId(1),
            cpu_ns,
            wait_ns: None,
            threads: 1,
            spinners: 0,
            active_wait: None,
            progress,
            stopped: false,
        }
    }

    /// Processes chunks of 0.1 s with these rates.
    fn outcomes_of(rates: &[f64]) -> (RateMeter, Vec<SampleOutcome>) {
        let mut meter = RateMeter::default();
        meter.moved(0);
        let (mut at_ns, mut total) = (SETTLE_NS, 1.0);
        let mut outcomes = vec![meter.read(at_ns, &sample(total, at_ns))];
        for rate in rates {
            at_ns += CHUNK_NS;
            total += rate * 0.1;
            outcomes.push(meter.read(at_ns, &sample(total, at_ns)));
        }
        (meter, outcomes)
    }

    #[test]
    fn the_error_of_a_steady_rate_shrinks() {
        let (few, _) = outcomes_of(&[10.0, 11.0, 10.0]);
        let (many, outcomes) = outcomes_of(&[10.0, 11.0].repeat(20));
        let (few, many) = (few.estimate().unwrap(), many.estimate().unwrap());
        assert!(many.relative_error < few.relative_error);
        assert!((many.rate - 10.5).abs() < 0.01 && (many.busy_cpus - 1.0).abs() < 1e-9);
        assert!(!outcomes.contains(&SampleOutcome::NewPhase));
    }

    #[test]
    fn detects_a_lasting_change_but_not_a_short_one() {
        let (_, outcomes) = outcomes_of(&[10.0, 10.0, 10.0, 10.0, 5.0, 5.0]);
        assert_eq!(outcomes.last(), Some(&SampleOutcome::NewPhase));
        let (_, outcomes) =
            outcomes_of(&[10.0, 10.0, 10.0, 10.0, 7.5, 10.0, 10.0, 13.0, 10.0, 10.0]);
        assert!(!outcomes.contains(&SampleOutcome::NewPhase));
    }

    #[test]
    fn ignores_the_time_after_a_move() {
        let mut meter = RateMeter::default();
        meter.moved(1_000);
        assert_eq!(
            meter.read(SETTLE_NS, &sample(1.0, 0)),
            SampleOutcome::Nothing
        );
        assert!(meter.open.is_none());
        assert!(meter.estimate().is_none());
    }
}

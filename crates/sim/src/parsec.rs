// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of the PARSEC programs of paper 1.
//!
//! A model consists of one of four thread structures and a few numbers, the [`ParsecTraits`]. A
//! script for a given number of threads is made from the traits ([`ParsecTraits::script`]). The
//! thread structures are:
//!
//! - *frames*: a serial part and parallel phases with barriers, repeated;
//! - *pipeline*: stages with queues between them;
//! - *tasks*: one queue and many workers;
//! - *rows*: each thread processes a frame of a video row by row; a row needs the same row of the
//!   frame before.
//!
//! The traits are fitted so that the model, run alone with n threads, has the speed-up that is
//! published for a machine of two packages. The speed-up on another machine is not fitted, but
//! serves for validation (`tests/fidelity.rs`). `data/parsec-traits.json` states for each program
//! which traits are fitted and which are assumed. The speed-ups do not determine two traits, the
//! memory traffic of ferret and that of streamcluster. These two traits are fitted to paper 1's
//! figures for its sample mix (`evidence/bench/examples/fit_sample.rs`).
//!
//! The programs are modelled after PARSEC 2.1 with pthreads. blackscholes has no barriers, but its
//! model has a barrier at the end of each repetition. dedup and ferret are pipelines with a set of
//! threads per stage. x264 has one frame per thread. No speed-up of x264 is published. Its model
//! assumes that a frame can start when 7 % of the frame before are done, so that 14 threads are
//! busy.
//!
//! Limits: a script needs at least one thread per stage. A frame has at most 1,000 rows, and a
//! pipeline at most 2^32 - 1 items, 100 per frame. Building a script takes time in proportion to
//! its steps. Work is in nanoseconds of an undisturbed core; shares are fractions.

use serde::{Deserialize, Serialize};

use crate::machine::Costs;
use crate::script::{BarrierWait, Memory, Op, Script, ThreadKind};

/// Thread structure of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadStructure {
    /// A serial part, then phases with barriers.
    Frames,
    /// One reader, three stages of n threads, one writer.
    Dedup,
    /// One reader, four stages of n threads, one writer.
    Ferret,
    /// One producer, n workers.
    Tasks,
    /// Each thread processes a frame row by row; a row depends on the same row of the frame before.
    Rows,
}

/// The parameters of a program model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParsecTraits {
    /// Thread structure.
    pub shape: ThreadStructure,
    /// Work of a frame (or of a hundred items) on one core, in milliseconds. The value determines
    /// the time between barriers.
    pub frame_ms: f64,
    /// Work of the parallel version on one thread, relative to the sequential version.
    pub parallel_overhead: f64,
    /// Share of the work that one thread does while the others wait. In a pipeline: share of the
    /// work that the first stage does. In rows: share of a frame that must be done before the next
    /// frame starts.
    pub serial: f64,
    /// Pipeline: share of the work that the last stage does. Unused in frames.
    pub writer: f64,
    /// Number of parallel phases of a frame.
    pub phases: u32,
    /// Number of pieces into which a phase is divided. Idle threads take the pieces one by one; 0:
    /// each thread has one piece.
    pub items: u32,
    /// Relative spread of the sizes of pieces; 0 to 1.
    pub spread: f64,
    /// Share of the parallel work done under one lock.
    pub critical_fraction: f64,
    /// Cost of additional threads, in microseconds. Frames: time that each thread needs in each
    /// phase to fetch cache lines that other threads wrote, for each CPU that the program may use.
    /// Pipelines: work of the last stage for each item, for each thread of the program.
    pub sync_us: f64,
    /// Growth of the cost `sync_us`: with n CPUs or threads, the cost per CPU or thread is `(n /
    /// 16)^(sync_power - 1)` times `sync_us`.
    pub sync_power: f64,
    /// How threads wait at barriers.
    pub wait: BarrierWait,
    /// Use of caches and memory.
    pub memory: Memory,
}

impl Default for ParsecTraits {
    fn default() -> Self {
        Self {
            shape: ThreadStructure::Frames,
            frame_ms: 100.0,
            parallel_overhead: 1.0,
            serial: 0.0,
            writer: 0.0,
            phases: 1,
            items: 0,
            spread: 0.05,
            critical_fraction: 0.0,
            sync_us: 0.0,
            sync_power: 1.0,
            wait: BarrierWait::Block,
            memory: Memory::default(),
        }
    }
}

const UNLIMITED: u32 = u32::MAX;
const MS: f64 = 1e6;
/// Maximum number of rows of a frame.
const ROWS_MAX: f64 = 1_000.0;

impl ParsecTraits {
    /// Returns the script of the program with `threads` threads per parallel stage and `frames`
    /// frames.
    pub fn script(&self, name: &str, threads: u32, frames: u32) -> Script {
        match self.shape {
            ThreadStructure::Frames => self.frames(name, threads, frames),
            ThreadStructure::Dedup => self.pipeline(name, threads, frames, &[0.08, 0.22, 0.70]),
            ThreadStructure::Ferret => {
                self.pipeline(name, threads, frames, &[0.08, 0.05, 0.07, 0.80])
            }
            ThreadStructure::Tasks => self.pipeline(name, threads, frames, &[1.0]),
            ThreadStructure::Rows => self.rows(name, threads, frames),
        }
    }

    /// Adapts the traits to a machine with other core and memory speeds than the reference machine.
    /// On slower cores the program waits for memory during a smaller share of its time and
    /// generates less traffic. The additional work of the parallel version counts as memory stalls,
    /// because it consists of fetching other threads' cache lines.
    #[must_use]
    pub fn adapted_to(&self, costs: &Costs) -> Self {
        let stall = self.memory.stall;
        let waits = stall * costs.latency;
        let time = (1.0 - stall) / costs.core_speed + waits;
        let parallel_overhead = match self.parallel_overhead > 1.0 {
            true => 1.0 + (self.parallel_overhead - 1.0) * costs.latency / time,
            false => self.parallel_overhead,
        };
        Self {
            parallel_overhead,
            memory: Memory {
                stall: waits / time,
                gbps: self.memory.gbps / time,
                ..self.memory.clone()
            },
            ..self.clone()
        }
    }

    fn sync_ns(&self, threads: u32) -> f64 {
        let threads = f64::from(threads);
        self.sync_us * 1e3 * threads * (threads / 16.0).powf(self.sync_power - 1.0)
    }

    /// Adapts the number and the length of frames to `seconds` of sequential work. Returns the
    /// traits and the number of frames. Frames are shortened, so that their number is whole.
    #[must_use]
    pub fn with_duration(&self, seconds: f64) -> (Self, u32) {
        let frames = (seconds * 1e3 / self.frame_ms).ceil().max(1.0) as u32;
        let frame_ms = seconds * 1e3 / f64::from(frames);
        let traits = Self {
            frame_ms,
            ..self.clone()
        };
        (traits, frames)
    }

    /// Returns the duration of `frames` frames of the sequential program, in seconds.
    pub fn sequential_seconds(&self, frames: u32) -> f64 {
        self.frame_ms * f64::from(frames) / 1e3
    }

    fn frames(&self, name: &str, threads: u32, frames: u32) -> Script {
        let work = self.frame_ms * MS * self.parallel_overhead;
        let parallel = work * (1.0 - self.serial) / f64::from(self.phases.max(1));
        let free = parallel * (1.0 - self.critical_fraction);
        let mut steps = Vec::new();
        if self.serial > 0.0 {
            steps.push(Op::Serial {
                ns: work * self.serial,
            });
            steps.push(Op::Barrier(0));
        }
        for phase in 0..self.phases.max(1) {
            steps.push(match self.items {
                0 => Op::Work {
                    ns: free / f64::from(threads),
                    spread: self.spread,
                },
                items => Op::Items {
                    pool: 0,
                    ns: free / f64::from(items),
                    spread: self.spread,
                },
            });
            let ns = parallel * self.critical_fraction / f64::from(threads);
            if ns > 0.0 {
                steps.extend([Op::Lock(0), Op::Work { ns, spread: 0.0 }, Op::Unlock(0)]);
            }
            if self.sync_us > 0.0 {
                steps.push(Op::CacheBounce {
                    per_cpu: self.sync_us * 1e3,
                    power: self.sync_power,
                });
            }
            steps.push(Op::Barrier(1 + phase as usize));
        }
        let times = frames;
        steps.push(Op::Loop { to: 0, times });
        Script {
            name: name.to_owned(),
            roles: vec![ThreadKind { threads, steps }],
            pools: vec![self.items],
            queues: vec![],
            wait: self.wait,
            adaptive_spin: false,
            memory: self.memory.clone(),
        }
    }

    /// Returns a script with threads in a ring. Each thread passes a finished row of its frame to
    /// the next thread, which then processes the same row of the next frame.
    fn rows(&self, name: &str, threads: u32, frames: u32) -> Script {
        let rows = (1.0 / self.serial).round().clamp(1.0, ROWS_MAX);
        let each = frames.div_ceil(threads).max(2);
        let all = f64::from(each) * f64::from(threads) * rows;
        let row = Op::Work {
            ns: self.frame_ms * MS * self.parallel_overhead * f64::from(frames) / all,
            spread: self.spread,
        };
        let rows = rows as u32;
        let role = |number: u32| {
            let (own, next) = (number as usize, (number + 1) % threads);
            let put = Op::Put(next as usize);
            let mut steps = Vec::new();
            // The first frame depends on no other frame.
            let mut left = each.saturating_mul(rows);
            if number == 0 {
                steps.extend([row.clone(), put.clone()]);
                steps.push(Op::Loop { to: 0, times: rows });
                left -= rows;
            }
            let to = steps.len();
            if left > 0 {
                steps.extend([Op::Take(own), row.clone(), put]);
                steps.push(Op::Loop { to, times: left });
            }
            ThreadKind { threads: 1, steps }
        };
        Script {
            name: name.to_owned(),
            roles: (0..threads).map(role).collect(),
            pools: vec![],
            // No thread takes the rows of the last frame, so that a queue must hold them.
            queues: vec![2 * rows; threads as usize],
            wait: self.wait,
            adaptive_spin: false,
            memory: self.memory.clone(),
        }
    }

    /// Returns a script with a reader, parallel stages with these shares of the work, and a writer.
    fn pipeline(&self, name: &str, threads: u32, frames: u32, shares: &[f64]) -> Script {
        let item = self.frame_ms * MS * self.parallel_overhead / 100.0;
        let between = item * (1.0 - self.serial - self.writer);
        let work = |ns: f64| Op::Work {
            ns,
            spread: self.spread,
        };
        let loop_back = |times| Op::Loop { to: 0, times };
        let mut roles = vec![ThreadKind {
            threads: 1,
            steps: vec![
                work(item * self.serial),
                Op::Put(0),
                loop_back(frames.saturating_mul(100)),
            ],
        }];
        for (stage, share) in shares.iter().enumerate() {
            let mut steps = vec![
                Op::Take(stage),
                work(between * share * (1.0 - self.critical_fraction)),
            ];
            if stage + 1 == shares.len() {
                let ns = between * share * self.critical_fraction;
                if ns > 0.0 {
                    steps.extend([Op::Lock(0), Op::Work { ns, spread: 0.0 }, Op::Unlock(0)]);
                }
            }
            steps.extend([Op::Put(stage + 1), loop_back(UNLIMITED)]);
            roles.push(ThreadKind { threads, steps });
        }
        let last = shares.len();
        roles.push(ThreadKind {
            threads: 1,
            steps: vec![
                Op::Take(last),
                work(item * self.writer + self.sync_ns(threads)),
                loop_back(UNLIMITED),
            ],
        });
        Script {
            name: name.to_owned(),
            roles,
            pools: vec![],
            queues: vec![20; last + 1],
            wait: self.wait,
            adaptive_spin: false,
            memory: self.memory.clone(),
        }
    }
}

/// A program with its traits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParsecModel {
    /// Name of the program.
    pub name: String,
    /// Names of the traits fitted to published speed-ups; the other traits are assumed.
    pub fitted: Vec<String>,
    /// The traits.
    pub traits: ParsecTraits,
}

/// Returns the models of the programs of paper 1.
///
/// # Errors
/// The built-in file of traits is malformed; a test reads it.
pub fn programs() -> Result<Vec<ParsecModel>, serde_json::Error> {
    serde_json::from_str(include_str!("../data/parsec-traits.json"))
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of the PARSEC programs of paper 1.
//!
//! Each is a few numbers, its [`Traits`], and one of four shapes: *frames*
//! (a serial part and parallel phases with barriers, again and again), a
//! *pipeline* (stages with queues between them), *tasks* (one queue, many
//! workers), or *rows* (each thread a frame, which trails the one before). The
//! traits are fitted so that the model, run alone with n threads, gives the
//! speed-up that was published for a machine of two packages; that it does so for
//! another machine too is checked, not fitted
//! (`tests/fidelity.rs`). Which traits were fitted and which assumed stands with
//! each program in `data/parsec-traits.json`. Two of them the speed-ups leave
//! open, how much memory traffic ferret and streamcluster have: these are what
//! gives paper 1's figures for its sample mix (`examples/fit_sample.rs`).
//!
//! What the programs do is as in PARSEC 2.1 with pthreads: blackscholes has no
//! barriers, but a repetition must have an end; dedup and ferret are pipelines
//! with a set of threads for each stage; x264 has a frame a thread. Of x264 no
//! speed-up is published: it is assumed that a frame can begin when 7 % of the
//! one before are done, which keeps 14 threads busy.

use serde::{Deserialize, Serialize};

use crate::machine::Costs;
use crate::script::{Memory, Op, Role, Script, Wait};

/// How a program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// A serial part and phases with barriers.
    Frames,
    /// One reader, three stages of n threads, one writer.
    Dedup,
    /// One reader, four stages of n threads, one writer.
    Ferret,
    /// One producer, n workers.
    Tasks,
    /// A frame a thread, row by row; a row waits for that of the frame before.
    Rows,
}

/// What tells one program from another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traits {
    /// How it is built.
    pub shape: Shape,
    /// Work of a frame (or of a hundred items) on one core, in milliseconds: how
    /// far apart barriers are.
    pub frame_ms: f64,
    /// Work of the parallel version on one thread relative to the sequential one.
    pub extra: f64,
    /// Share of the work that one thread does while the others wait; in a
    /// pipeline, that of the first stage; in rows, the share of a frame by which
    /// the next one trails.
    pub serial: f64,
    /// In a pipeline, the share of the last stage; unused in frames.
    pub writer: f64,
    /// Parallel phases of a frame.
    pub phases: u32,
    /// Pieces into which a phase is cut for whoever is free; 0: one a thread.
    pub items: u32,
    /// How unequal pieces are, 0..1.
    pub spread: f64,
    /// Share of the parallel work that only one thread at a time can do.
    pub locked: f64,
    /// What more threads cost: time of each thread in each phase for every CPU
    /// that the program's threads may be on (they have the lines that it
    /// writes), or work of a pipeline's last stage with each item for every
    /// thread that there is.
    pub sync_us: f64,
    /// How that grows with them: it is `sync_us` for each of sixteen,
    /// and for each of n `(n / 16)^(sync_power - 1)` times that.
    pub sync_power: f64,
    /// How threads wait at barriers.
    pub wait: Wait,
    /// Caches and memory.
    pub memory: Memory,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            shape: Shape::Frames,
            frame_ms: 100.0,
            extra: 1.0,
            serial: 0.0,
            writer: 0.0,
            phases: 1,
            items: 0,
            spread: 0.05,
            locked: 0.0,
            sync_us: 0.0,
            sync_power: 1.0,
            wait: Wait::Block,
            memory: Memory::default(),
        }
    }
}

const FOREVER: u32 = u32::MAX;
const MS: f64 = 1e6;
/// Rows that a frame is cut into at most.
const ROWS_MAX: f64 = 1_000.0;

impl Traits {
    /// The program with so many threads (of each parallel stage) and so many
    /// frames.
    pub fn script(&self, name: &str, threads: u32, frames: u32) -> Script {
        match self.shape {
            Shape::Frames => self.frames(name, threads, frames),
            Shape::Dedup => self.pipeline(name, threads, frames, &[0.08, 0.22, 0.70]),
            Shape::Ferret => self.pipeline(name, threads, frames, &[0.08, 0.05, 0.07, 0.80]),
            Shape::Tasks => self.pipeline(name, threads, frames, &[1.0]),
            Shape::Rows => self.rows(name, threads, frames),
        }
    }

    /// The program on a machine with other cores and another memory than the
    /// one that the traits are given for: on slower cores it waits for a
    /// smaller part of its time, and asks for less. What the parallel version
    /// has to do in addition is waiting too (for lines that other threads have).
    #[must_use]
    pub fn on(&self, costs: &Costs) -> Self {
        let stall = self.memory.stall;
        let waits = stall * costs.latency;
        let time = (1.0 - stall) / costs.core_speed + waits;
        let extra = match self.extra > 1.0 {
            true => 1.0 + (self.extra - 1.0) * costs.latency / time,
            false => self.extra,
        };
        Self {
            extra,
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

    /// The program with so much sequential work, and the frames that it has
    /// then: as many as it takes, shortened so that there is a whole number of them.
    #[must_use]
    pub fn lasting(&self, seconds: f64) -> (Self, u32) {
        let frames = (seconds * 1e3 / self.frame_ms).ceil().max(1.0) as u32;
        let frame_ms = seconds * 1e3 / f64::from(frames);
        let traits = Self {
            frame_ms,
            ..self.clone()
        };
        (traits, frames)
    }

    /// Sequential seconds of so many frames.
    pub fn sequential_seconds(&self, frames: u32) -> f64 {
        self.frame_ms * f64::from(frames) / 1e3
    }

    fn frames(&self, name: &str, threads: u32, frames: u32) -> Script {
        let work = self.frame_ms * MS * self.extra;
        let parallel = work * (1.0 - self.serial) / f64::from(self.phases.max(1));
        let free = parallel * (1.0 - self.locked);
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
            let ns = parallel * self.locked / f64::from(threads);
            if ns > 0.0 {
                steps.extend([Op::Lock(0), Op::Work { ns, spread: 0.0 }, Op::Unlock(0)]);
            }
            if self.sync_us > 0.0 {
                steps.push(Op::Contend {
                    ns: self.sync_us * 1e3,
                    power: self.sync_power,
                });
            }
            steps.push(Op::Barrier(1 + phase as usize));
        }
        let times = frames;
        steps.push(Op::Again { to: 0, times });
        Script {
            name: name.to_owned(),
            roles: vec![Role { threads, steps }],
            pools: vec![self.items],
            queues: vec![],
            wait: self.wait,
            settles: false,
            memory: self.memory.clone(),
        }
    }

    /// Threads in a ring: each puts a row of its frame before the next thread,
    /// which does the same row of the next frame then.
    fn rows(&self, name: &str, threads: u32, frames: u32) -> Script {
        let rows = (1.0 / self.serial).round().clamp(1.0, ROWS_MAX);
        let each = frames.div_ceil(threads).max(2);
        let all = f64::from(each) * f64::from(threads) * rows;
        let row = Op::Work {
            ns: self.frame_ms * MS * self.extra * f64::from(frames) / all,
            spread: self.spread,
        };
        let rows = rows as u32;
        let role = |number: u32| {
            let (own, next) = (number as usize, (number + 1) % threads);
            let put = Op::Put(next as usize);
            let mut steps = Vec::new();
            // Before the first frame there is none.
            let mut left = each.saturating_mul(rows);
            if number == 0 {
                steps.extend([row.clone(), put.clone()]);
                steps.push(Op::Again { to: 0, times: rows });
                left -= rows;
            }
            let to = steps.len();
            if left > 0 {
                steps.extend([Op::Take(own), row.clone(), put]);
                steps.push(Op::Again { to, times: left });
            }
            Role { threads: 1, steps }
        };
        Script {
            name: name.to_owned(),
            roles: (0..threads).map(role).collect(),
            pools: vec![],
            // The last rows are put where nobody takes them.
            queues: vec![2 * rows; threads as usize],
            wait: self.wait,
            settles: false,
            memory: self.memory.clone(),
        }
    }

    /// A reader, stages with these shares of what lies between, a writer.
    fn pipeline(&self, name: &str, threads: u32, frames: u32, shares: &[f64]) -> Script {
        let item = self.frame_ms * MS * self.extra / 100.0;
        let between = item * (1.0 - self.serial - self.writer);
        let work = |ns: f64| Op::Work {
            ns,
            spread: self.spread,
        };
        let again = |times| Op::Again { to: 0, times };
        let mut roles = vec![Role {
            threads: 1,
            steps: vec![
                work(item * self.serial),
                Op::Put(0),
                again(frames.saturating_mul(100)),
            ],
        }];
        for (stage, share) in shares.iter().enumerate() {
            let mut steps = vec![Op::Take(stage), work(between * share * (1.0 - self.locked))];
            if stage + 1 == shares.len() {
                let ns = between * share * self.locked;
                if ns > 0.0 {
                    steps.extend([Op::Lock(0), Op::Work { ns, spread: 0.0 }, Op::Unlock(0)]);
                }
            }
            steps.extend([Op::Put(stage + 1), again(FOREVER)]);
            roles.push(Role { threads, steps });
        }
        let last = shares.len();
        roles.push(Role {
            threads: 1,
            steps: vec![
                Op::Take(last),
                work(item * self.writer + self.sync_ns(threads)),
                again(FOREVER),
            ],
        });
        Script {
            name: name.to_owned(),
            roles,
            pools: vec![],
            queues: vec![20; last + 1],
            wait: self.wait,
            settles: false,
            memory: self.memory.clone(),
        }
    }
}

/// A program with its traits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Those of its traits that were fitted to its published speed-up; the
    /// others are assumed.
    pub fitted: Vec<String>,
    /// Its traits.
    pub traits: Traits,
}

/// The programs of paper 1.
///
/// # Errors
/// The file of traits that was built in is broken; a test reads it.
pub fn programs() -> Result<Vec<Model>, serde_json::Error> {
    serde_json::from_str(include_str!("../data/parsec-traits.json"))
}

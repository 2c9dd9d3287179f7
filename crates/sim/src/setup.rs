// SPDX-License-Identifier: MIT OR Apache-2.0
//! What paper 1's evaluation is simulated with, and what nobody has published
//! of it: the free parameters, each with the range that it may lie in.

use crate::kernel::Kernel;
use crate::machine::Costs;
use crate::parsec::Model;

/// The machine of paper 1: four packages of two dies of six cores, with a
/// memory controller each.
pub const PAPER_1: &str = "package:4 die:2 numa:1 core:6 pu:1";

/// The programs, what the machine's hardware costs, its kernel, and how long
/// the programs are.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The programs.
    pub models: Vec<Model>,
    /// The hardware.
    pub costs: Costs,
    /// The kernel.
    pub kernel: Kernel,
    /// Seconds that a program takes on one core.
    pub native_s: f64,
}

impl Setup {
    /// The setting that the published figures were fitted with.
    pub fn new(models: Vec<Model>) -> Self {
        Self {
            models,
            costs: Costs::default(),
            kernel: Kernel::cfs(),
            native_s: 200.0,
        }
    }

    fn each(&mut self, change: impl Fn(&mut Model)) {
        self.models.iter_mut().for_each(change);
    }
}

/// Something that is not known of the machine or of the programs.
#[derive(Debug, Clone, Copy)]
pub struct Free {
    /// Its name.
    pub name: &'static str,
    /// What its values are.
    pub what: &'static str,
    /// The ends of its range.
    pub range: (f64, f64),
    set: fn(&mut Setup, f64),
}

impl Free {
    /// The setup with that value of it.
    pub fn set(&self, setup: &Setup, value: f64) -> Setup {
        let mut changed = setup.clone();
        (self.set)(&mut changed, value);
        changed
    }
}

/// All of them. Wherever a value stands in the middle of its range, the middle
/// is what [`Setup::new`] has.
pub const FREE: [Free; 10] = [
    Free {
        name: "node bandwidth",
        what: "GB/s of a die's memory controller; 12 gives the sample mix's figures, 21 is the channels' peak",
        range: (9.0, 16.0),
        set: |setup, value| setup.costs.node_gbps = value,
    },
    Free {
        name: "traffic",
        what: "memory traffic of all programs, relative to what was fitted or assumed",
        range: (0.7, 1.4),
        set: |setup, value| setup.each(|model| model.traits.memory.gbps *= value),
    },
    Free {
        name: "LLC sensitivity",
        what: "how much more traffic and waiting a full cache means, relative to what was assumed",
        range: (0.0, 2.0),
        set: |setup, value| setup.each(|model| model.traits.memory.sensitivity *= value),
    },
    Free {
        name: "working sets",
        what: "bytes that programs use together and for each thread, relative to what was assumed",
        range: (0.5, 2.0),
        set: |setup, value| {
            setup.each(|model| {
                model.traits.memory.shared_bytes *= value;
                model.traits.memory.private_bytes *= value;
            });
        },
    },
    Free {
        name: "first touch",
        what: "0: each program's memory lies where it is described to; 1: everywhere where its threads run",
        range: (0.0, 1.0),
        set: |setup, value| {
            if value > 0.5 {
                setup.each(|model| model.traits.memory.one_node = false);
            }
        },
    },
    Free {
        name: "far memory",
        what: "latency of another package's memory relative to one's own",
        range: (1.2, 2.0),
        set: |setup, value| setup.costs.far_factor = value,
    },
    Free {
        name: "latency",
        what: "milliseconds in which all in a queue of the kernel have a turn; 24 in its source",
        range: (8.0, 48.0),
        set: |setup, value| setup.kernel.latency_ns = (value * 1e6) as u64,
    },
    Free {
        name: "migration",
        what: "refilling a core's and a die's caches, relative to what was assumed",
        range: (0.3, 3.0),
        set: |setup, value| {
            setup.costs.private_refill_ns *= value;
            setup.costs.refill_gbps /= value;
        },
    },
    Free {
        name: "x264's lag",
        what: "part of a frame by which the next one trails; no curve of it is published",
        range: (0.03, 0.12),
        set: |setup, value| {
            let x264 = |model: &&mut Model| model.name == "x264";
            setup
                .models
                .iter_mut()
                .filter(x264)
                .for_each(|model| model.traits.serial = value);
        },
    },
    Free {
        name: "length",
        what: "seconds that a program takes on one core: native inputs take minutes",
        range: (100.0, 400.0),
        set: |setup, value| setup.native_s = value,
    },
];

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The input of the simulation of paper 1's evaluation: machine, costs, kernel and programs. Ten
//! values that the paper does not publish are free parameters, each with a plausible range.
//! [`FreeParameter::set`] returns a setup with another value of a parameter.

use crate::kernel::Kernel;
use crate::machine::Costs;
use crate::parsec::ParsecModel;

/// The machine of paper 1: four packages, each with two dies of six cores. Each die has a memory
/// controller of its own.
pub const PAPER_1: &str = "package:4 die:2 numa:1 core:6 pu:1";

/// The programs, the costs and kernel of the machine, and the length of the programs.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationSetup {
    /// The programs.
    pub models: Vec<ParsecModel>,
    /// The costs of the hardware.
    pub costs: Costs,
    /// The kernel.
    pub kernel: Kernel,
    /// Duration of a program on one core, in seconds.
    pub native_s: f64,
}

impl EvaluationSetup {
    /// Returns the default setup, in which the model was fitted to the figures that the paper
    /// publishes.
    pub fn new(models: Vec<ParsecModel>) -> Self {
        Self {
            models,
            costs: Costs::default(),
            kernel: Kernel::cfs(),
            native_s: 200.0,
        }
    }

    fn each(&mut self, change: impl Fn(&mut ParsecModel)) {
        self.models.iter_mut().for_each(change);
    }
}

/// A parameter of the machine or the programs without a published value.
#[derive(Debug, Clone, Copy)]
pub struct FreeParameter {
    /// Name of the parameter.
    pub name: &'static str,
    /// Unit and meaning of the parameter's values.
    pub what: &'static str,
    /// Range of the parameter.
    pub range: (f64, f64),
    set: fn(&mut EvaluationSetup, f64),
}

impl FreeParameter {
    /// Returns the setup with the parameter set to `value`.
    pub fn set(&self, setup: &EvaluationSetup, value: f64) -> EvaluationSetup {
        let mut changed = setup.clone();
        (self.set)(&mut changed, value);
        changed
    }
}

/// All free parameters. The range of each parameter contains the default in
/// [`EvaluationSetup::new`]. Values outside of the range are not rejected.
pub const FREE_PARAMETERS: [FreeParameter; 10] = [
    FreeParameter {
        name: "node bandwidth",
        what: "bandwidth of a die's memory controller in GB/s; 12 reproduces the figures of the \
               sample mix, 21 is the peak of the memory channels",
        range: (9.0, 16.0),
        set: |setup, value| setup.costs.node_gbps = value,
    },
    FreeParameter {
        name: "traffic",
        what: "memory traffic of all programs, relative to the fitted or assumed value",
        range: (0.7, 1.4),
        set: |setup, value| setup.each(|model| model.traits.memory.gbps *= value),
    },
    FreeParameter {
        name: "LLC sensitivity",
        what: "increase of memory traffic and stall time when the last-level cache is full, \
               relative to the assumed increase",
        range: (0.0, 2.0),
        set: |setup, value| setup.each(|model| model.traits.memory.sensitivity *= value),
    },
    FreeParameter {
        name: "working sets",
        what: "bytes that all threads of a program share and bytes of each thread, relative to \
               the assumed numbers",
        range: (0.5, 2.0),
        set: |setup, value| {
            setup.each(|model| {
                model.traits.memory.shared_bytes *= value;
                model.traits.memory.private_bytes *= value;
            });
        },
    },
    FreeParameter {
        name: "first touch",
        what: "0: the memory of a program is on the NUMA nodes that the program's description \
               gives; 1: the memory is on all nodes where the program's threads run",
        range: (0.0, 1.0),
        set: |setup, value| {
            if value > 0.5 {
                setup.each(|model| model.traits.memory.one_node = false);
            }
        },
    },
    FreeParameter {
        name: "far memory",
        what: "latency of the memory of another package relative to that of the local NUMA node",
        range: (1.2, 2.0),
        set: |setup, value| setup.costs.far_factor = value,
    },
    FreeParameter {
        name: "latency",
        what: "time in ms in which every thread of a run queue runs once; 24 in the kernel's \
               source",
        range: (8.0, 48.0),
        set: |setup, value| setup.kernel.latency_ns = (value * 1e6) as u64,
    },
    FreeParameter {
        name: "migration",
        what: "costs to refill the caches of a core and of a die after a migration, relative to \
               the assumed costs",
        range: (0.3, 3.0),
        set: |setup, value| {
            setup.costs.private_refill_ns *= value;
            setup.costs.refill_gbps /= value;
        },
    },
    FreeParameter {
        name: "x264's lag",
        what: "part of a frame after which x264 starts the next frame; no scalability curve of \
               x264 is published",
        range: (0.03, 0.12),
        set: |setup, value| {
            let x264 = |model: &&mut ParsecModel| model.name == "x264";
            setup
                .models
                .iter_mut()
                .filter(x264)
                .for_each(|model| model.traits.serial = value);
        },
    },
    FreeParameter {
        name: "length",
        what: "duration of a program on one core in seconds; the native inputs of PARSEC take \
               minutes",
        range: (100.0, 400.0),
        set: |setup, value| setup.native_s = value,
    },
];

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Validates the tables of a sim file and converts them to a mix: machine costs, kernel, protocol,
//! programs. Values that would make a simulation endless or meaningless are rejected. An error
//! names the key and the line.
//!
//! Limits: 1 to 10,000 copies of a program, 1 to 16,384 threads per program, at most 10,000,000
//! frames; arrivals and runs within a virtual year. Slices are from 0.1 ms to 10 s, other periods
//! of the kernel from 10 µs to 10 s. The first invalid value is returned.

use std::ops::Range;

use toml::Spanned;

use super::raw::{RawMachine, RawProgram, RawProtocol, RawScript};
use super::{MACHINES, PROGRAMS_MAX, ProgramBody, SimMixError, SimProgram, SimProtocol, Source};
use crate::kernel::{Kernel, QueueOrder};
use crate::machine::Costs;
use crate::parsec::{self, ParsecTraits};
use crate::script::{Script, THREADS_MAX};
use crate::slurm_node::SlurmNode;

/// Minimum length of a slice. In shorter slices, cache refills would take most of the time.
const SLICE_NS_MIN: i64 = 100_000;
/// Permitted range of the kernel's periods, in nanoseconds.
const KERNEL_NS: std::ops::RangeInclusive<i64> = 10_000..=10_000_000_000;
/// The kernel presets.
const KERNELS: [&str; 3] = ["linux-eevdf", "linux-2.6.37", "usher-sched"];
/// Maximum number of frames of a program.
const FRAMES_MAX: f64 = 1e7;
/// Default work of a program: its duration on one core, in seconds.
const SECONDS: f64 = 60.0;

impl Source<'_> {
    /// Returns the name of the preset of the machine's costs, and the costs after the file's own
    /// values have replaced those of the preset.
    pub(super) fn costs(&self, raw: &RawMachine) -> Result<(String, Costs), SimMixError> {
        if raw.from.get_ref().trim().is_empty() {
            let reason = "machine.from is empty; 'usher topo --help' lists the possible values";
            return Err(self.wrong(&raw.from.span(), reason));
        }
        let name = raw
            .preset
            .as_ref()
            .map_or(MACHINES[0], |preset| preset.get_ref());
        let base = match name {
            "opteron-6172" => Costs::default(),
            "xeon-e5-2695v2" => Costs::xeon(),
            "xeon-phi-7210" => Costs::phi(),
            _ => {
                let span = raw.preset.as_ref().map_or(0..0, Spanned::span);
                let known = MACHINES.join(", ");
                let reason = format!("machine.preset: unknown preset '{name}'; presets: {known}");
                return Err(self.wrong(&span, reason));
            }
        };
        let Some(own) = &raw.costs else {
            return Ok((name.to_owned(), base));
        };
        let wrong = |reason: String| self.wrong(&own.span(), format!("machine.costs: {reason}"));
        let mut table = toml::Table::try_from(base).map_err(|error| wrong(error.to_string()))?;
        for (key, value) in own.get_ref() {
            let amount = match value {
                toml::Value::Integer(whole) => *whole as f64,
                toml::Value::Float(float) => *float,
                other => return Err(wrong(format!("{key}: must be a number, not {other}"))),
            };
            // Bandwidths, sizes and the speed are divisors, and must not be 0.
            let least = match key.as_str() {
                "refill_gbps" | "node_gbps" | "core_speed" | "llc_bytes" => f64::MIN_POSITIVE,
                _ => 0.0,
            };
            if !(amount.is_finite() && amount >= least) {
                let must = if least > 0.0 { "positive" } else { "0 or more" };
                let at = self.line_of(&own.span(), key);
                let reason = format!("machine.costs: {key}: must be {must}, not {amount}");
                return Err(self.wrong(&at, reason));
            }
            table.insert(key.clone(), toml::Value::Float(amount));
        }
        let costs: Costs = table.try_into().map_err(|error: toml::de::Error| {
            wrong(
                error
                    .message()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            )
        })?;
        Ok((format!("{name}, with changes from the mix file"), costs))
    }

    /// Returns the kernel: the preset, with the file's own values in place of those of the preset.
    pub(super) fn kernel(&self, raw: Option<Spanned<toml::Table>>) -> Result<Kernel, SimMixError> {
        let Some(raw) = raw else {
            return Ok(Kernel::default());
        };
        let (span, mut own) = (raw.span(), raw.into_inner());
        let wrong = |key: &str, reason: String| {
            let at = self.line_of(&span, key);
            self.wrong(&at, format!("kernel.{key}: {reason}"))
        };
        let preset = own.remove("preset");
        let base = kernel_preset(preset.as_ref()).map_err(|reason| wrong("preset", reason))?;
        let base = toml::Table::try_from(base).map_err(|error| wrong("", error.to_string()))?;
        let mut table = base.clone();
        let keys: Vec<String> = own.keys().cloned().collect();
        // As on the command line, the maximum lag defaults to the turn.
        if let (Some(turn), None) = (own.get("turn_ns"), own.get("max_lag_ns")) {
            table.insert("max_lag_ns".to_owned(), turn.clone());
        }
        for (key, value) in own {
            if let Some(reason) = kernel_value_fault(&base, &key, &value) {
                return Err(wrong(&key, reason));
            }
            table.insert(key.clone(), value);
            if let Err(error) = table.clone().try_into::<Kernel>() {
                let message = error
                    .message()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                return Err(wrong(&key, message));
            }
        }
        let order = table["order"].clone();
        let whole = table.try_into();
        let kernel: Kernel =
            whole.map_err(|error: toml::de::Error| wrong("", error.message().to_owned()))?;
        match keys.iter().find(|key| !applies_to(kernel.order, key)) {
            Some(key) => Err(wrong(
                key,
                format!("the key has no effect with order = {order}"),
            )),
            None => Ok(kernel),
        }
    }

    pub(super) fn protocol(
        &self,
        raw: Option<Spanned<RawProtocol>>,
    ) -> Result<SimProtocol, SimMixError> {
        let span = raw.as_ref().map_or(0..0, Spanned::span);
        let raw = raw.map_or_else(RawProtocol::default, Spanned::into_inner);
        let wrong = |key: &str, reason: &str| {
            let at = self.line_of(&span, key);
            Err(self.wrong(&at, format!("protocol.{key}: {reason}")))
        };
        if raw.policies.is_empty() {
            return wrong("policies", "the list of schedulers is empty");
        }
        let twice = |at: &usize| raw.policies[..*at].contains(&raw.policies[*at]);
        if (0..raw.policies.len()).any(|at| twice(&at)) {
            return wrong(
                "policies",
                "the list contains a scheduler twice: name each scheduler once",
            );
        }
        if raw.repetitions == 0 {
            return wrong("repetitions", "must be 1 or more");
        }
        if raw.rounds == 0 {
            return wrong("rounds", "must be 1 or more");
        }
        let slices = SlurmNode::SLICE_S_MIN..=SlurmNode::SLICE_S_MAX;
        if !slices.contains(&raw.gang_slice_s) {
            return wrong("gang_slice_s", "must be from 0.1 to 86,400 seconds");
        }
        if raw.jobs_per_core == 0 {
            return wrong("jobs_per_core", "must be 1 or more");
        }
        if raw.events_max == 0 {
            return wrong("events_max", "must be 1 or more");
        }
        // The limit is a virtual year, far more than can be simulated.
        if !(raw.max_seconds > 0.0 && raw.max_seconds <= 3.2e7) {
            return wrong(
                "max_seconds",
                "must be a positive number of seconds, at most one year",
            );
        }
        Ok(SimProtocol {
            policies: raw.policies,
            repetitions: raw.repetitions,
            rounds: raw.rounds,
            seed: raw.seed,
            max_seconds: raw.max_seconds,
            events_max: raw.events_max,
            node: SlurmNode {
                slice_s: raw.gang_slice_s,
                jobs_per_core: raw.jobs_per_core as usize,
            },
        })
    }

    pub(super) fn program(
        &self,
        span: Range<usize>,
        raw: RawProgram,
    ) -> Result<SimProgram, SimMixError> {
        let name = raw.name.clone().or_else(|| raw.parsec.clone());
        let Some(name) = name.filter(|name| !name.trim().is_empty()) else {
            return Err(self.wrong(&span, "each program needs a `name`"));
        };
        let wrong = |key: &str, reason: String| {
            let at = self.line_of(&span, key);
            self.wrong(&at, format!("program '{name}': {key}: {reason}"))
        };
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !positive(raw.weight) {
            let reason = format!("must be a positive number, not {}", raw.weight);
            return Err(wrong("weight", reason));
        }
        if !(raw.at.is_finite() && (0.0..=3.2e7).contains(&raw.at)) {
            let reason = format!("must be from 0 to 32,000,000 seconds, not {}", raw.at);
            return Err(wrong("at", reason));
        }
        if raw.copies == 0 || raw.copies as usize > PROGRAMS_MAX {
            let reason = format!("must be from 1 to {PROGRAMS_MAX}, not {}", raw.copies);
            return Err(wrong("copies", reason));
        }
        if let Some(seconds) = raw.seconds.filter(|&seconds| !positive(seconds)) {
            let reason = format!("must be a positive number, not {seconds}");
            return Err(wrong("seconds", reason));
        }
        if let Some(threads) = raw.threads.filter(|t| !(1..=THREADS_MAX).contains(t)) {
            let reason = format!("must be from 1 to {THREADS_MAX}, not {threads}");
            return Err(wrong("threads", reason));
        }
        if raw.cpus == Some(0) {
            return Err(wrong("cpus", "must be 1 or more".to_owned()));
        }
        let (weight, known, repeats) = (raw.weight, raw.known, raw.repeats);
        let (copies, at_s, cpus) = (raw.copies, raw.at, raw.cpus);
        let body = body(&name, raw).map_err(|(key, reason)| wrong(key, reason))?;
        Ok(SimProgram {
            name,
            body,
            weight,
            cpus,
            known,
            repeats,
            copies,
            at_s,
            resident: true,
        })
    }
}

/// Returns the steps of a program, which the keys `parsec`, `traits` or `script` define. The error
/// is the invalid key and the reason.
fn body(name: &str, raw: RawProgram) -> Result<ProgramBody, (&'static str, String)> {
    let (threads, seconds) = (raw.threads, raw.seconds);
    let of_traits = |from: String, traits: ParsecTraits, elsewhere: bool| {
        if let Some(reason) = traits_fault(&traits) {
            return Err(("traits", reason));
        }
        let seconds = seconds.unwrap_or(SECONDS);
        if seconds * 1e3 / traits.frame_ms > FRAMES_MAX {
            let reason = format!(
                "the work consists of more than {FRAMES_MAX:e} frames of {} ms, the maximum: \
                 reduce `seconds`, or raise `frame_ms`",
                traits.frame_ms
            );
            return Err(("seconds", reason));
        }
        Ok(ProgramBody::Traits {
            from,
            traits: Box::new(traits),
            elsewhere,
            threads,
            seconds,
        })
    };
    match (raw.parsec, raw.traits, raw.script) {
        (Some(parsec), None, None) => {
            let models = parsec::programs().map_err(|error| ("parsec", error.to_string()))?;
            let known: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
            let unknown = || format!("unknown program '{parsec}'; programs: {}", known.join(", "));
            let found = models.iter().find(|model| model.name == parsec);
            let model = found.ok_or_else(|| ("parsec", unknown()))?;
            let from = format!("model of {parsec} of PARSEC");
            of_traits(from, model.traits.clone(), true)
        }
        (None, Some(traits), None) => of_traits("traits".to_owned(), traits, false),
        (None, None, Some(script)) => match (threads, seconds) {
            (None, None) => written_out(name, script),
            (Some(_), _) => Err((
                "threads",
                "not allowed with `script`, whose roles determine the number of threads".to_owned(),
            )),
            (_, Some(_)) => Err((
                "seconds",
                "not allowed with `script`, whose steps determine the work".to_owned(),
            )),
        },
        _ => Err((
            "name",
            "give exactly one of `parsec`, `traits`, `script`".to_owned(),
        )),
    }
}

fn written_out(name: &str, raw: RawScript) -> Result<ProgramBody, (&'static str, String)> {
    let script = Script {
        name: name.to_owned(),
        roles: raw.roles,
        pools: raw.pools,
        queues: raw.queues,
        wait: raw.wait,
        adaptive_spin: raw.adaptive_spin,
        memory: raw.memory,
    };
    script.check().map_err(|error| ("script", error.reason))?;
    Ok(ProgramBody::Script(Box::new(script)))
}

/// Returns the kernel of a preset, or the default kernel if the file names no preset.
fn kernel_preset(preset: Option<&toml::Value>) -> Result<Kernel, String> {
    match preset.map_or(Some(KERNELS[0]), toml::Value::as_str) {
        Some("linux-eevdf") => Ok(Kernel::default()),
        Some("linux-2.6.37") => Ok(Kernel::cfs()),
        Some("usher-sched") => Ok(Kernel::usher()),
        _ => Err(format!(
            "the preset is unknown; presets: {}",
            KERNELS.join(", ")
        )),
    }
}

/// Returns the reason why a key or its value is invalid, if any. `base` is the table of the preset.
fn kernel_value_fault(base: &toml::Table, key: &str, value: &toml::Value) -> Option<String> {
    let Some(known) = base.get(key) else {
        let keys: Vec<&str> = base.keys().map(String::as_str).collect();
        let hint = usher_model::closest_name(key, keys.iter().copied().chain(["preset"]));
        let hint = hint.map_or(String::new(), |key| {
            format!("; a similar name exists: `{key}`")
        });
        let keys = keys.join(", ");
        return Some(format!(
            "the key is unknown; known keys: preset, {keys}{hint}"
        ));
    };
    match (known, value) {
        (toml::Value::Integer(_), toml::Value::Integer(ns)) => nanoseconds_fault(key, *ns),
        (toml::Value::Integer(_), _) => Some(format!(
            "must be a whole number of nanoseconds, such as 3_000_000, not {value}"
        )),
        _ if known.type_str() != value.type_str() => Some(format!(
            "must be a {}, such as {known}, not {value}",
            known.type_str()
        )),
        _ => None,
    }
}

/// Returns whether the key applies to a kernel with this order.
fn applies_to(order: QueueOrder, key: &str) -> bool {
    match key {
        "aggregate" | "turn_ns" | "max_lag_ns" => order == QueueOrder::Usher,
        "group_by" | "busy_balance_ns" => order != QueueOrder::Usher,
        "protect_ns" => order == QueueOrder::Eevdf,
        "latency_ns" | "wakeup_granularity_ns" => order == QueueOrder::Cfs,
        _ => true,
    }
}

/// Returns the reason why a time of the kernel is invalid, if any. Some times may be 0, which means
/// off. Very short periods are rejected, because the simulation would consist mostly of their
/// events.
fn nanoseconds_fault(key: &str, ns: i64) -> Option<String> {
    let least = match key {
        "slice_ns" => SLICE_NS_MIN,
        _ => *KERNEL_NS.start(),
    };
    let may_be_off = !["slice_ns", "balance_ns", "turn_ns", "max_lag_ns"].contains(&key);
    let most = *KERNEL_NS.end();
    if may_be_off && ns == 0 || (least..=most).contains(&ns) {
        return None;
    }
    let off = if may_be_off { "0 or " } else { "" };
    Some(format!("must be {off}from {least} to {most}, not {ns}"))
}

/// Returns the reason why traits are invalid, if any.
fn traits_fault(traits: &ParsecTraits) -> Option<String> {
    let shares = [
        ("serial", traits.serial),
        ("writer", traits.writer),
        ("spread", traits.spread),
        ("critical_fraction", traits.critical_fraction),
        (
            "the sum of serial and writer",
            traits.serial + traits.writer,
        ),
    ];
    let outside = |&(_, share): &(&str, f64)| !(0.0..=1.0).contains(&share);
    if let Some((name, share)) = shares.into_iter().find(outside) {
        return Some(format!("{name} must be from 0 to 1, not {share}"));
    }
    let amounts = [
        ("frame_ms", traits.frame_ms, 1e-3..=1e9),
        ("parallel_overhead", traits.parallel_overhead, 1e-3..=1e3),
        ("sync_us", traits.sync_us, 0.0..=1e6),
        ("sync_power", traits.sync_power, 0.0..=4.0),
        ("phases", f64::from(traits.phases), 1.0..=1e3),
    ];
    let outside =
        |(_, amount, range): &(_, f64, std::ops::RangeInclusive<f64>)| !range.contains(amount);
    let (name, amount, range) = amounts.into_iter().find(outside)?;
    let (least, most) = (range.start(), range.end());
    Some(format!(
        "{name} must be from {least} to {most}, not {amount}"
    ))
}

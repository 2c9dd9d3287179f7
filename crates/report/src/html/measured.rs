// SPDX-License-Identifier: MIT OR Apache-2.0
//! The section "How it was measured" of a page: machine, protocol, programs with their times alone,
//! and the estimators of the statistics. Missing values become "–".

use maud::{Markup, html};
use usher_model::Topology;

use crate::data::{MachineFacts, MixResult, Protocol};
use crate::figure::program_class;
use crate::stats;
use crate::text;

/// The section "How it was measured".
pub(crate) fn section(mix: &MixResult) -> Markup {
    html! {
        h2 { @if mix.simulated { "How the mix was simulated" } @else { "How the mix was measured" } }
        (machine(&mix.machine))
        (protocol(&mix.protocol))
        (programs(mix))
        h3 { "Estimators" }
        p.soft {
            "Ratios compare the same round of two policies. Point estimates are geometric means \
             of the ratios; intervals are expanded percentile bootstraps over the rounds \
             (Hesterberg 2015), "
            (stats::RESAMPLES) " resamples, PCG generator, seed " (mix.protocol.seed) ". Below "
            (stats::LEVEL_PAIRS) " rounds a confidence interval is about as wide as the range of \
                                  the measured values and contains the true value with less than \
                                  95 % probability; below "
            (stats::INTERVAL_PAIRS) " rounds there is no interval."
        }
    }
}

fn machine(machine: &MachineFacts) -> Markup {
    html! {
        dl {
            dt { "Machine" } dd { (machine.host) ": " (machine.cpu_model) }
            dt { "Topology" } dd { (topology(&machine.topology)) }
            dt { "Kernel" } dd { (machine.kernel) }
            dt { "Hardware counters" } dd { @if machine.pmu { "yes" } @else { "none, so no progress is measured by \
                                                                               instructions" } }
            @for note in &machine.notes { dt { "Note" } dd { (note) } }
        }
    }
}

/// A machine in one line: `2 packages, 8 L3 domains (12 MiB), 48 cores, 48 CPUs`.
pub(crate) fn topology(t: &Topology) -> String {
    let llc = t.domains.first().and_then(|d| d.llc);
    let domain = llc.map_or("domain".to_owned(), |c| format!("L{} domain", c.level));
    let size = match llc.filter(|c| c.bytes > 0) {
        Some(cache) => format!(" ({})", text::bytes(cache.bytes)),
        None => String::new(),
    };
    format!(
        "{}, {}{size}, {}, {}",
        text::count(t.packages.len(), "package"),
        text::count(t.domains.len(), &domain),
        text::count(t.cores.len(), "core"),
        text::count(t.cpus.len(), "CPU")
    )
}

fn protocol(protocol: &Protocol) -> Markup {
    html! {
        dl {
            dt { "Rounds" }
            dd {
                (protocol.rounds) ", policies "
                @if protocol.interleaved { "interleaved: each round runs all policies" } @else { "not interleaved: all rounds of one \
                                                                                                  policy before the next policy" }
            }
            dt { "Repetitions" } dd { "every program is repeated until all programs have run at \
                                       least " (text::count(protocol.repeats_min as usize, "time")) }
            dt { "Sessions" } dd { (protocol.sessions) }
            @if !protocol.command.is_empty() { dt { "Command" } dd { code { (protocol.command) } } }
            @if !protocol.date.is_empty() { dt { "Date" } dd { (protocol.date) } }
            @for note in &protocol.notes { dt { "Note" } dd { (note) } }
        }
    }
}

fn programs(mix: &MixResult) -> Markup {
    html! {
        h3 { "Programs" }
        div.scroll { table {
            thead { tr { th { "Program" } th { "Class" } th.n { "Weight" } th.n { "Best alone" } th.n { "on cores" } th { "Curve" } th { "Command" } } }
            tbody {
                @for (i, p) in mix.programs.iter().enumerate() {
                    tr {
                        td data-label="Program" { b class={ "chip " (program_class(i)) } { (text::key(i)) } (p.name) }
                        td data-label="Class" { (p.class) }
                        td.n data-label="Weight" { (text::short(p.weight, 2)) }
                        td.n data-label="Best alone" { (text::seconds(p.alone_best_seconds)) }
                        td.n data-label="on cores" { (p.alone_best_cores.map_or(text::NONE.to_owned(), |n| text::short(n, 2))) }
                        td data-label="Curve" { (p.curve_source) }
                        td data-label="Command" { code { (p.command) } }
                    }
                }
            }
        } }
    }
}

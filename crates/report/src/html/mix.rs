// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report page of a mix: conclusion, turnaround times, scalability curves, seats over time with
//! the policy's notes, tables and the measurement.
//!
//! The page is self-contained: it loads no other file. One timeline per policy shows the round with
//! the median ANTT, with at most 24 notes ([`NOTES_SHOWN`]); the trace contains all notes. The cost
//! is that of the comparisons, if they are missing (`data`), and of one layout per policy.

use maud::{Markup, html};

use crate::data::{MixResult, PolicyResult, PolicyRole, RoundResult, SpanMode};
use crate::figure::{self, CurveFigure};
use crate::html::frame::{figure as framed, frame};
use crate::html::other::{self, Section};
use crate::html::{measured, tables};
use crate::summary;
use crate::text;

/// Maximum number of notes below a timeline; the trace contains all notes.
const NOTES_SHOWN: usize = 24;

/// A self-contained page about a mix: the conclusion, turnaround, curves, seats over time, all
/// figures, and the measurement. Missing comparisons are computed.
pub fn page(mix: &MixResult) -> String {
    page_with(mix, &[])
}

/// Returns the page, with the caller's sections after the turnaround times.
pub fn page_with(mix: &MixResult, sections: &[Section]) -> String {
    let mut mix = mix.clone();
    if mix.policies.iter().all(|p| p.comparison.is_none()) {
        mix.compare();
    }
    let banner = mix.simulated.then_some(
        "SIMULATED: the machine and the programs are models; no figure of this report was \
         measured on hardware",
    );
    let content = html! {
        (head(&mix))
        main {
            (turnaround(&mix))
            (other::drawn(sections))
            (curves(&mix))
            (timelines(&mix))
            (tables::figures(&mix))
            (measured::section(&mix))
        }
    };
    frame(&mix.title, banner, &content)
}

fn head(mix: &MixResult) -> Markup {
    let headline = summary::headline(mix);
    html! {
        header.top {
            h1 { (mix.title) }
            @if !mix.description.is_empty() { p.lead { (mix.description) } }
            p.soft {
                (text::count(mix.programs.len(), "program")) " · "
                (text::policies(mix.policies.len())) " · "
                (text::count(mix.protocol.rounds as usize, "round")) " · "
                (text::count(mix.machine.topology.cpus.len(), "CPU")) " on " (mix.machine.host)
                @if !mix.protocol.date.is_empty() { " · " (mix.protocol.date) }
            }
            section class={ "verdict " @if let Some(w) = &headline.winner { (figure::policy_class(mix, w)) } } {
                p.sentence { (headline.sentence) }
                @if !headline.remarks.is_empty() {
                    ul { @for remark in &headline.remarks { li { (remark) } } }
                }
            }
        }
    }
}

fn turnaround(mix: &MixResult) -> Markup {
    html! {
        h2 { "Turnaround" }
        p.soft {
            "A program's normalised turnaround time (NTT) is the mean time of its repetitions in \
             the mix divided by its best time alone; "
            "ANTT is the weighted mean of the NTTs of all programs. Bars are geometric means \
             over the rounds."
        }
        h3 { "ANTT" }
        (framed(&figure::antt(mix)))
        h3 { "Against the baseline" }
        (framed(&figure::ratio(mix)))
        @if let Some(band) = summary::aa_band(mix) {
            p.soft {
                "Grey: the A/A band, from " (text::number(band.low, 3)) " to " (text::number(band.high, 3))
                "; two rounds of the same policy differ by ratios within this band (" (text::count(band.pairs, "pair")) ")."
            }
        }
        h3 { "NTT of each program" }
        p.soft { "Whiskers reach from the lowest to the highest round; the dashed line marks NTT \
                  1, as fast as alone." }
        (framed(&figure::ntt(mix)))
    }
}

fn curves(mix: &MixResult) -> Markup {
    let cores_max: f64 = mix.machine.topology.cores.iter().map(|c| c.capacity).sum();
    let (class, width, height) = match mix.programs.len() {
        0..=3 => ("panels few", 330.0, 235.0),
        _ => ("panels", 250.0, 200.0),
    };
    html! {
        h2 { "Scalability alone" }
        p.soft {
            "Speed-up of each program, alone, over one core. Dots are " @if mix.simulated { "simulated" } @else { "measured" } ", the lines between them are \
                                                                                                                                interpolated; the dotted line is ideal \
                                                                                                                                scaling. "
            "Flags on the axis mark the number of cores that a policy gave the program for the \
             longest time."
        }
        (policy_legend(mix, PolicyRole::Candidate))
        div class=(class) {
            @for (i, program) in mix.programs.iter().enumerate() {
                div {
                    @match &program.curve {
                        Some(curve) => (figure::curve_panel(curve, &CurveFigure {
                            title: &format!("{} {}", text::key(i), text::cut(&program.name, 28)),
                            class: &figure::program_class(i),
                            cores_max,
                            seats: seats(mix, &program.name),
                            ..CurveFigure::default()
                        }, width, height)),
                        None => { h3 { (text::key(i)) " " (program.name) } p.empty { "No curve was measured." } },
                    }
                    p.soft { (program.curve_source) }
                }
            }
        }
    }
}

fn seats(mix: &MixResult, program: &str) -> Vec<(String, String, f64)> {
    let mark = |policy: &PolicyResult| {
        let cores = summary::usual_cores(mix, policy.typical_round()?, program)?;
        let class = figure::policy_class(mix, &policy.name);
        Some((class, policy.label.clone(), cores))
    };
    mix.policies.iter().filter_map(mark).collect()
}

fn policy_legend(mix: &MixResult, role: PolicyRole) -> Markup {
    html! {
        div.legend {
            @for policy in mix.policies.iter().filter(|p| p.role == role) {
                span { i class={ "bar " (figure::policy_class(mix, &policy.name)) } {} (policy.label) }
            }
        }
    }
}

fn timelines(mix: &MixResult) -> Markup {
    let shown: Vec<(&PolicyResult, &RoundResult)> = mix
        .policies
        .iter()
        .filter(|p| p.role != PolicyRole::BaselineAgain)
        .filter_map(|p| Some((p, p.typical_round()?)))
        .collect();
    let seconds_max = shown.iter().map(|(_, r)| r.length_s()).fold(0.0, f64::max);
    html! {
        h2 { "Seats over time" }
        p.soft { "Each picture shows the round with the median ANTT of one policy. CPUs are \
                  ordered from top to bottom by last-level cache; all rounds have the same time \
                  scale." }
        (timeline_legend(mix, &shown))
        @for (policy, round) in &shown {
            h3 { i class={ "bar " (figure::policy_class(mix, &policy.name)) } {} (policy.label)
                @if let Some(antt) = round.antt { span.soft { " · ANTT " (text::number(antt, 2)) " in this round" } }
            }
            @if round.abstained {
                p.soft {
                    "No management"
                    @if let Some(because) = &round.abstained_because { ": " (because) }
                }
            }
            (framed(&figure::timeline(mix, policy, round, seconds_max)))
            (notes(round))
        }
    }
}

fn timeline_legend(mix: &MixResult, shown: &[(&PolicyResult, &RoundResult)]) -> Markup {
    let spans = || shown.iter().flat_map(|(_, round)| &round.timeline);
    let sample = |class: &str, pattern: Option<&str>| {
        html! {
            svg.swatch.p0 viewBox="0 0 20 14" aria-hidden="true" {
                rect class=(class) x="1" y="1" width="18" height="12" {}
                @if let Some(pattern) = pattern { rect class=(pattern) x="1" y="1" width="18" height="12" {} }
            }
        }
    };
    html! {
        div.legend {
            @for (i, program) in mix.programs.iter().enumerate() {
                span { b class={ "chip " (figure::program_class(i)) } { (text::key(i)) } (program.name) }
            }
        }
        div.legend {
            @if spans().any(|s| s.mode == SpanMode::Seated) { span { (sample("solid", None)) "seated" } }
            @if spans().any(|s| s.mode == SpanMode::InTurn) { span { (sample("solid", None)) "in turn: one program runs, the others \
                                                                                               are stopped" } }
            @if spans().any(|s| s.borrowed_from.is_some()) { span { (sample("solid", Some("dotted"))) "on CPUs borrowed from another program" } }
            @if spans().any(|s| s.mode == SpanMode::Shared) {
                span { (sample("pale", Some("hatch"))) "shared time: the kernel schedules several programs \
                                                        on the same CPUs (one band per program, or one \
                                                        grey area for many programs)" }
                span { (sample("pale", None)) "without a seat, but alone on its CPUs" }
            }
            @if spans().any(|s| s.mode == SpanMode::Frozen) { span { (sample("frozen", None)) "stopped" } }
        }
    }
}

fn notes(round: &RoundResult) -> Markup {
    let notes = figure::sorted_notes(round);
    let rest = notes.len().saturating_sub(NOTES_SHOWN);
    html! {
        @if !notes.is_empty() {
            ol.notes {
                @for (at, note) in notes.iter().take(NOTES_SHOWN) {
                    li { b { (text::seconds(*at)) } " " (note) }
                }
            }
            @if rest > 0 { p.soft { "… and " (text::count(rest, "more note")) " in the file trace.json." } }
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of cores in a file of hwloc (elements `cpukind`). Damaged values are ignored, and a
//! note with the line of the file reports each.
//!
//! A file with kinds that do not contain all CPUs does not state the speed of the other CPUs. They
//! are rated like the fastest cores; [`note_unrated`] reports them.

use usher_model::CpuSet;

use super::elements::Element;
use super::{SETS_MAX, XmlFile};
use crate::assemble::{CoreKind, HwlocFacts};
use crate::capacity;
use crate::error::quoted;

/// Maximum number of notes on the kinds of one file.
const NOTES_MAX: usize = 16;

/// hwloc's number of an efficiency that is unknown (`HWLOC_CPUKIND_EFFICIENCY_UNKNOWN`).
const EFFICIENCY_UNKNOWN: &str = "-1";

impl XmlFile {
    /// The kinds of cores, and the notes on damaged values.
    pub(crate) fn kinds(&self) -> (Vec<CoreKind>, Vec<String>) {
        let mut kinds: Vec<CoreKind> = Vec::new();
        let mut notes = Vec::new();
        let mut seen = CpuSet::new();
        let mut total = 0;
        for (index, element) in self.elements.iter().enumerate() {
            if element.name != "cpukind" {
                continue;
            }
            let mut note = |text: String| {
                if notes.len() < NOTES_MAX {
                    notes.push(format!("line {}: {text}", element.line));
                }
            };
            let cpus = match cpus_of_kind(element) {
                Ok(cpus) => cpus,
                Err(reason) => {
                    note(reason);
                    continue;
                }
            };
            total += cpus.len();
            if total > SETS_MAX {
                note(
                    "the CPU kinds are too many; this kind and the next ones are ignored"
                        .to_owned(),
                );
                break;
            }
            let twice = cpus.and(&seen);
            if !twice.is_empty() {
                let text = quoted(&twice.to_string());
                note(format!(
                    "the CPUs {text} are in several CPU kinds; the last kind counts"
                ));
            }
            seen = seen.or(&cpus);
            let rank = element.attribute("forced_efficiency");
            let rank = rank.filter(|rank| *rank != EFFICIENCY_UNKNOWN);
            let efficiency = rank.and_then(|rank| rank.parse::<u32>().ok());
            if let Some(rank) = rank.filter(|_| efficiency.is_none()) {
                let rank = quoted(rank);
                note(format!(
                    "the value '{rank}' of forced_efficiency is not a valid rank; it is ignored"
                ));
            }
            for (name, value) in self.infos(index) {
                if let Some(wanted) = capacity::invalid(name, value) {
                    let value = quoted(value);
                    note(format!(
                        "the value '{value}' of {name} is not {wanted}; {name} is ignored"
                    ));
                }
            }
            let infos = self.infos(index);
            kinds.push(CoreKind {
                cpus,
                efficiency,
                infos: infos
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
            });
        }
        (kinds, notes)
    }
}

/// The CPUs of a kind, or a note on the reason why the kind is ignored.
fn cpus_of_kind(element: &Element) -> Result<CpuSet, String> {
    match element.cpus("cpuset") {
        Ok(cpus) if !cpus.is_empty() => Ok(cpus),
        Ok(_) => Err("a CPU kind has no CPUs; it is ignored".to_owned()),
        Err(_) => {
            let set = quoted(element.attribute("cpuset").unwrap_or(""));
            Err(format!(
                "the cpuset '{set}' of a CPU kind is not valid; the kind is ignored"
            ))
        }
    }
}

/// Adds notes on CPUs that are in no kind although other CPUs are, and on kinds with CPUs that do
/// not exist.
pub(crate) fn note_unrated(facts: &mut HwlocFacts) {
    let rated = (facts.kinds.iter()).fold(CpuSet::new(), |set, kind| set.or(&kind.cpus));
    if rated.is_empty() {
        return;
    }
    let all: CpuSet = facts.pus.iter().copied().collect();
    let unrated = all.minus(&rated);
    if !unrated.is_empty() {
        facts.notes.push(format!(
            "the CPUs {unrated} are in no CPU kind; they are rated like the fastest cores"
        ));
    }
    let unknown = rated.minus(&all).minus(&facts.offline);
    if !unknown.is_empty() {
        let unknown = quoted(&unknown.to_string());
        facts.notes.push(format!(
            "the CPU kinds contain the CPUs {unknown}, which do not exist; they are ignored"
        ));
    }
}

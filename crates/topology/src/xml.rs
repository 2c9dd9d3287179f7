// SPDX-License-Identifier: MIT OR Apache-2.0
//! XML files of hwloc, versions 1 to 3.
//!
//! 1. `elements` reads the elements of the file. Malformed XML is an error with the line.
//! 2. [`survey`] determines the version and rejects files that describe no single machine.
//! 3. [`facts`] converts files of the versions 2 and 3: the types, CPU sets and attributes of their
//!    objects. hwloc 2.9 reads no file of version 3, aborts on many damaged files of version 2, and
//!    rejects line ends of Windows; here, each fault has a reason with its line. Files of version 1
//!    are read by hwloc.
//!
//! The kinds of cores come from the elements `cpukind` for all versions, because only the file
//! states whether the order of the kinds was given (`forced_efficiency`).
//!
//! The reader needs no DTD and resolves no external entity. Memory and time are linear in the size
//! of the file, which the caller limits.

mod elements;
mod kinds;

use usher_model::cpuset::CPU_ID_MAX;
use usher_model::{Cache, CpuId, CpuSet};

use crate::assemble::{HwlocFacts, Node};
use crate::error::quoted;
use crate::synthetic::cache_level;
use elements::Element;
pub(crate) use kinds::note_unrated;

/// An XML file of hwloc with its version.
#[derive(Debug)]
pub(crate) struct XmlFile {
    elements: Vec<Element>,
    /// First number of the version: 1, 2 or 3.
    pub version: u32,
}

/// Reads the elements and checks that the file describes one machine.
///
/// # Errors
/// Returns one line with the reason, and the line of the file for malformed XML.
pub(crate) fn survey(text: &str) -> Result<XmlFile, String> {
    let elements = elements::read(text)?;
    let root = elements.first().ok_or("the file contains no element")?;
    match root.name.as_str() {
        "topology" => {}
        "topologydiff" => {
            return Err(
                "the file describes the difference of two machines (hwloc-diff)".to_owned(),
            );
        }
        other => {
            return Err(format!(
                "the file is not an XML file written by hwloc: the first element is '{}', not \
                 'topology' (to write one: lstopo machine.xml)",
                quoted(other)
            ));
        }
    }
    let text = root.attribute("version").unwrap_or("1");
    let version = text.split('.').next().and_then(|text| text.parse().ok());
    let version = version.filter(|version| (1..=3).contains(version));
    let version = version.ok_or_else(|| {
        format!(
            "the file has version {} of hwloc's format; the versions 1 to 3 can be read",
            quoted(text)
        )
    })?;
    let file = XmlFile { elements, version };
    let count = |wanted| file.objects().filter(|o| o.object_type() == wanted).count();
    if count("PU") == 0 {
        return Err(
            "the file of hwloc contains no logical CPU (an object of the type PU)".to_owned(),
        );
    }
    let machines = count("Machine");
    if machines > 1 {
        return Err(format!(
            "the file describes {machines} machines (a cluster, as hwloc 1 could write it); \
             describe each machine in a file of its own"
        ));
    }
    if count("System") > 0 {
        return Err(
            "the file describes a system of several machines, an object type of hwloc 1".to_owned(),
        );
    }
    Ok(file)
}

impl XmlFile {
    fn objects(&self) -> impl Iterator<Item = &Element> {
        self.elements.iter().filter(|e| e.name == "object")
    }

    /// The value of an information of an element, such as the `CPUModel` of a package.
    fn info(&self, parent: usize, name: &str) -> Option<&str> {
        self.infos(parent)
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }

    fn infos(&self, parent: usize) -> impl Iterator<Item = (&str, &str)> {
        let of_parent = self.elements[parent + 1..]
            .iter()
            .take_while(move |element| element.parent >= parent)
            .filter(move |element| element.parent == parent && element.name == "info");
        of_parent.filter_map(|info| Some((info.attribute("name")?, info.attribute("value")?)))
    }
}

/// Maximum number of elements of all CPU sets of a file. The sets of a machine with 65,536 CPUs have
/// about 10 times as many.
const SETS_MAX: usize = 4_000_000;

/// Converts a file of version 2 or 3.
///
/// # Errors
/// Returns one line with the line of the file: an invalid CPU set, number or size.
pub(crate) fn facts(file: &XmlFile, name: String) -> Result<HwlocFacts, String> {
    let mut facts = HwlocFacts {
        name,
        ..HwlocFacts::default()
    };
    let mut machine = CpuSet::new();
    let mut complete = CpuSet::new();
    let mut allowed = None;
    let mut machine_model = file.info(0, "CPUModel").map(str::to_owned);
    let mut sets = SetReader { total: 0 };
    for (index, object) in file.elements.iter().enumerate() {
        if object.name != "object" {
            continue;
        }
        match object.object_type() {
            "Machine" => {
                machine = sets.cpus(object, "cpuset")?;
                complete = sets.cpus(object, "complete_cpuset")?;
                if object.attribute("allowed_cpuset").is_some() {
                    allowed = Some(sets.cpus(object, "allowed_cpuset")?);
                }
                machine_model = file
                    .info(index, "CPUModel")
                    .map_or(machine_model, |model| Some(model.to_owned()));
            }
            "Package" => {
                let model = file.info(index, "CPUModel").map(one_line);
                facts.packages.push((sets.cpus(object, "cpuset")?, model));
            }
            "Die" => facts.dies.push(sets.cpus(object, "cpuset")?),
            "Core" => facts.cores.push(sets.cpus(object, "cpuset")?),
            "PU" => facts.pus.push(object.number("os_index", CPU_ID_MAX)?),
            "NUMANode" => facts.nodes.push(Node {
                os: object.number("os_index", u32::MAX)?,
                near: sets.cpus(object, "cpuset")?,
                bytes: object.bytes("local_memory")?,
            }),
            other => {
                let level = cache_level(other).filter(|_| !is_memory_side(file, index));
                if let Some(level) = level {
                    let bytes = object.bytes("cache_size")?;
                    let cpus = sets.cpus(object, "cpuset")?;
                    facts.caches.push((Cache { level, bytes }, cpus));
                }
            }
        }
    }
    let all: CpuSet = facts.pus.iter().copied().collect();
    each_once("logical CPUs", facts.pus.iter().copied())?;
    each_once("NUMA nodes", facts.nodes.iter().map(|node| node.os))?;
    for (_, model) in &mut facts.packages {
        *model = model.take().or(machine_model.as_deref().map(one_line));
    }
    limit_to(&mut facts, &all);
    facts.caches.sort_by_key(|(cache, _)| cache.level);
    facts.offline = complete.minus(&machine).minus(&all);
    facts.disallowed = allowed.map_or_else(CpuSet::new, |allowed| all.minus(&allowed));
    (facts.kinds, facts.notes) = file.kinds();
    note_unrated(&mut facts);
    Ok(facts)
}

/// Reads CPU sets up to [`SETS_MAX`].
struct SetReader {
    total: usize,
}

impl SetReader {
    fn cpus(&mut self, object: &Element, name: &str) -> Result<CpuSet, String> {
        let set = object.cpus(name)?;
        self.total += set.len();
        match self.total > SETS_MAX {
            true => Err(format!(
                "line {}: the CPU sets of the file have more than {SETS_MAX} elements",
                object.line
            )),
            false => Ok(set),
        }
    }
}

/// Checks that no number occurs twice.
fn each_once(what: &str, numbers: impl Iterator<Item = u32>) -> Result<(), String> {
    let mut sorted: Vec<u32> = numbers.collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!(
            "two {what} of the file have the number {}",
            pair[0]
        )),
        None => Ok(()),
    }
}

/// Removes CPUs without an object from all sets.
fn limit_to(facts: &mut HwlocFacts, all: &CpuSet) {
    let sets = (facts.cores.iter_mut())
        .chain(&mut facts.dies)
        .chain(facts.packages.iter_mut().map(|(cpus, _)| cpus))
        .chain(facts.caches.iter_mut().map(|(_, cpus)| cpus))
        .chain(facts.nodes.iter_mut().map(|node| &mut node.near));
    for set in sets {
        *set = set.and(all);
    }
}

fn is_memory_side(file: &XmlFile, index: usize) -> bool {
    let subtype = file.elements[index].attribute("subtype");
    crate::discover::is_memory_side(subtype.or(file.info(index, "Type")))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Element {
    fn object_type(&self) -> &str {
        self.attribute("type").unwrap_or("")
    }

    /// The CPUs of a bitmap such as `0x00000001,,0xffff0000`: words of 32 bits, the highest first.
    /// hwloc writes a word of zeros between other words as an empty word. An attribute that is
    /// missing is an empty set. The prefix `0xf...f`, for an infinite set, is the set of all CPUs
    /// up to the largest number.
    fn cpus(&self, name: &str) -> Result<CpuSet, String> {
        let text = self.attribute(name).unwrap_or("").trim();
        let mut cpus = CpuSet::new();
        let mut infinite_from = None;
        let words: Vec<&str> = match text {
            "" => Vec::new(),
            text => text.split(',').collect(),
        };
        for (place, word) in words.iter().rev().enumerate() {
            if place + 1 == words.len() && *word == "0xf...f" {
                infinite_from = Some(place);
                continue;
            }
            let hex = word.strip_prefix("0x").unwrap_or(word);
            let digits = hex.bytes().all(|b| b.is_ascii_hexdigit());
            let bits = match word.is_empty() {
                true => Ok(0),
                false => u32::from_str_radix(hex, 16),
            };
            let Some(bits) = bits
                .ok()
                .filter(|_| digits && place <= CPU_ID_MAX as usize / 32)
            else {
                return Err(format!(
                    "line {}: the attribute {name} is not a valid set of CPUs from 0 to {CPU_ID_MAX}",
                    self.line
                ));
            };
            let first = place as CpuId * 32;
            cpus.extend(
                (0..32)
                    .filter(|bit| bits >> bit & 1 == 1)
                    .map(|bit| first + bit),
            );
        }
        if let Some(place) = infinite_from {
            cpus.extend(place as CpuId * 32..=CPU_ID_MAX);
        }
        Ok(cpus)
    }

    fn number(&self, name: &str, most: u32) -> Result<u32, String> {
        let number = self.attribute(name).and_then(|text| text.parse().ok());
        number.filter(|number| *number <= most).ok_or_else(|| {
            format!(
                "line {}: the attribute {name} of an object of the type {} is {}, not a number from 0 \
                 to {most}",
                self.line,
                quoted(self.object_type()),
                match self.attribute(name) {
                    Some(text) => format!("'{}'", quoted(text)),
                    None => "missing".to_owned(),
                }
            )
        })
    }

    /// A size in bytes; 0 if it is missing.
    fn bytes(&self, name: &str) -> Result<u64, String> {
        match self.attribute(name) {
            None => Ok(0),
            Some(text) => text.parse().map_err(|_| {
                format!(
                    "line {}: the attribute {name} is not a valid size",
                    self.line
                )
            }),
        }
    }
}

#[cfg(test)]
mod tests;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the description of a machine to the shape of a machine that QEMU can build.
//!
//! QEMU builds only regular machines: all packages have the same number of dies, all dies the same
//! number of cores, and all cores the same number of hardware threads. CPUs are numbered in this
//! order. The only shared cache is an L3 for each die. Each LLC domain of a description, which is
//! an L3 or a NUMA node, therefore becomes a die of the guest. Descriptions of other machines are
//! rejected, and so are machines with more than 255 CPUs. The error states the reason.

use usher_model::{CpuSet, Topology};
use usher_topology::Source;

use crate::LabError;

/// Maximum number of CPUs of a guest. It is the limit of interrupt controllers without x2APIC
/// addresses.
pub const CPUS_MAX: usize = 255;

/// A regular machine: the numbers of its units, from packages to hardware threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Number of packages.
    pub packages: usize,
    /// Dies per package; the cores of a die share an L3.
    pub dies: usize,
    /// Cores per die.
    pub cores: usize,
    /// Hardware threads per core.
    pub threads: usize,
    /// The CPUs of each NUMA node.
    pub nodes: Vec<CpuSet>,
}

impl Shape {
    /// Parses a one-line description: `package:4 die:2 core:6 pu:1`.
    ///
    /// # Errors
    /// If the description is invalid, or if no guest can have this machine. The error is one line
    /// with the description and the reason.
    pub fn parse(description: &str) -> Result<Self, LabError> {
        // `Source::parse` takes a text that is no description for the name of a file. Such a text
        // is reported as an invalid description instead.
        let source = match Source::parse(description)? {
            Source::Synthetic(text) => Source::Synthetic(text),
            _ => {
                return Err(LabError::shape(
                    description,
                    "the argument names a file; a guest requires a description such as package:2 \
                     core:2",
                ));
            }
        };
        let topology = usher_topology::load(source)?;
        Self::of(&topology).map_err(|reason| LabError::shape(description, reason))
    }

    /// Returns the shape of a machine. Returns the reason as an error if QEMU cannot build such a
    /// machine.
    fn of(machine: &Topology) -> Result<Self, String> {
        let cpus = machine.cpus.len();
        if cpus > CPUS_MAX {
            return Err(format!(
                "the description has {cpus} CPUs, but a guest has at most {CPUS_MAX}"
            ));
        }
        let dies = dies(machine)?;
        let sizes = |name, sets: Vec<&CpuSet>| in_order(name, cpus, &sets);
        let of_package = sizes(
            "packages",
            machine.packages.iter().map(|p| &p.cpus).collect(),
        )?;
        let of_domain = sizes("dies", machine.domains.iter().map(|d| &d.cpus).collect())?;
        let of_core = sizes("cores", machine.cores.iter().map(|c| &c.cpus).collect())?;
        let nodes: Vec<CpuSet> = machine.nodes.iter().map(|n| n.cpus.clone()).collect();
        in_order("NUMA nodes", cpus, &nodes.iter().collect::<Vec<_>>())?;
        debug_assert_eq!(of_package, of_domain * dies);
        Ok(Self {
            packages: machine.packages.len(),
            dies,
            cores: of_domain / of_core,
            threads: of_core,
            nodes,
        })
    }

    /// Returns the number of logical CPUs.
    pub fn cpus(&self) -> usize {
        self.packages * self.dies * self.cores * self.threads
    }
}

/// Returns the number of dies per package, which is the number of LLC domains of a package.
fn dies(machine: &Topology) -> Result<usize, String> {
    let domains = machine.packages.iter().map(|p| p.domains.len());
    let dies = domains.clone().next().unwrap_or(1);
    if domains.clone().any(|others| others != dies) {
        return Err(
            "the packages have different numbers of LLC domains, which cannot be emulated"
                .to_owned(),
        );
    }
    for package in &machine.packages {
        let described = package.dies.len();
        if described > 1 && described != dies {
            return Err(format!(
                "each die of a guest has one L3 cache: {described} dies with {dies} shared \
                 caches cannot be emulated; give only die:{dies}"
            ));
        }
    }
    Ok(dies)
}

/// Returns the number of CPUs of each of the machine's parts. Returns an error if the parts have
/// different numbers of CPUs, or if the CPUs are not numbered from the first part to the last.
fn in_order(name: &str, cpus: usize, parts: &[&CpuSet]) -> Result<usize, String> {
    let size = parts.first().map_or(0, |first| first.len());
    if parts.iter().any(|part| part.len() != size) || size * parts.len() != cpus {
        return Err(format!(
            "the {name} have different numbers of CPUs, which cannot be emulated"
        ));
    }
    let ordered = parts.iter().enumerate().all(|(at, part)| {
        let first = (at * size) as u32;
        **part == CpuSet::range(first, first + size as u32 - 1)
    });
    match ordered {
        true => Ok(size),
        false => Err(format!(
            "the CPUs are not numbered from the first to the last of the {name}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> [usize; 5] {
        let shape = Shape::parse(text).unwrap();
        let Shape {
            packages,
            dies,
            cores,
            threads,
            nodes,
        } = shape;
        [packages, dies, cores, threads, nodes.len()]
    }

    #[test]
    fn cpus_that_share_a_cache_become_a_die() {
        assert_eq!(shape("package:4 die:2 core:6 pu:1"), [4, 2, 6, 1, 1]);
        assert_eq!(shape("package:2 l3:2 core:2 pu:2"), [2, 2, 2, 2, 1]);
        assert_eq!(shape("package:1 numa:2 core:4"), [1, 2, 4, 1, 2]);
        assert_eq!(shape("package:2 die:2 l3:1 core:3 pu:1"), [2, 2, 3, 1, 1]);
        assert_eq!(shape("core:4"), [1, 1, 4, 1, 1]);
        assert_eq!(shape("package:4 [numa:1] die:2 core:6"), [4, 2, 6, 1, 4]);
        assert_eq!(shape("package:255"), [255, 1, 1, 1, 1]);
    }

    #[test]
    fn nodes_have_their_cpus() {
        let shape = Shape::parse("package:2 [numa:1] core:2 pu:2").unwrap();
        assert_eq!(shape.nodes, [CpuSet::range(0, 3), CpuSet::range(4, 7)]);
        assert_eq!(shape.cpus(), 8);
    }

    #[test]
    fn rejects_machines_that_cannot_be_built() {
        for (text, reason) in [
            ("package:256", "256 CPUs, but a guest has at most 255"),
            ("package:1 die:2 l3:2 core:2", "give only die:4"),
            (
                "package:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)",
                "not numbered from the first",
            ),
            ("core:0", "the count of the level 'core:0' is 0"),
            ("/", "requires a description"),
            ("/nowhere", "does not exist"),
            ("", "contains no level"),
        ] {
            let message = Shape::parse(text).unwrap_err().to_string();
            assert!(message.contains(reason), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}

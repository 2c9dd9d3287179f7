// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locations of domains within a package (die and NUMA nodes), and the grouping of adjacent domains
//! that share a location.

use usher_model::{DomainId, NodeId};

/// Location of a domain: the number of the die, if the package has several dies, and the NUMA
/// nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DomainLocation {
    pub(super) die: Option<usize>,
    pub(super) nodes: Vec<NodeId>,
}

/// Adjacent domains with the same location.
pub(super) struct LocationGroup {
    pub(super) place: DomainLocation,
    pub(super) domains: Vec<DomainId>,
}

impl LocationGroup {
    /// Adds a domain to the last group if that group has the same location, otherwise to a new
    /// group.
    pub(super) fn add(sites: &mut Vec<Self>, place: DomainLocation, id: DomainId) {
        match sites.last_mut() {
            Some(site) if site.place == place => site.domains.push(id),
            _ => sites.push(Self {
                place,
                domains: vec![id],
            }),
        }
    }
}

/// Returns whether each location has only one domain.
pub(super) fn each_its_own(sites: &[LocationGroup]) -> bool {
    sites.iter().all(|site| site.domains.len() == 1)
}

/// The domains of all groups, each with its group.
pub(super) fn each_domain(
    sites: &[LocationGroup],
) -> impl Iterator<Item = (&LocationGroup, DomainId)> {
    sites
        .iter()
        .flat_map(|site| site.domains.iter().map(move |&id| (site, id)))
}

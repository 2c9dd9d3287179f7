// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assigns numbers to network interfaces, and finds their names.
//!
//! The kernel's interface numbers are unique only within a network namespace. Interfaces of the
//! meter's own namespace keep their numbers. Interfaces of other namespaces, which containers use,
//! get numbers from 2^31 on, in the order in which the meter finds them. Loopback is left out,
//! because programs do not contend for it. The number 0 stands for an unknown interface. An
//! interface keeps its number until the meter is closed, also after its removal. The names cost a
//! read of one file per interface.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use usher_model::{LinkId, LinkUse};

use crate::layout::NetInterface;
use crate::text;

/// Index of the interface `lo` in every network namespace.
const LOOPBACK: u32 = 1;
const FOREIGN: u32 = 1 << 31;
/// The interface of sockets without a known route.
pub(crate) const UNKNOWN: LinkId = LinkId(0);

/// The known interfaces.
#[derive(Debug)]
pub(crate) struct KnownLinks {
    sys: PathBuf,
    own_netns: u32,
    foreign: BTreeMap<NetInterface, LinkId>,
}

impl KnownLinks {
    pub fn new(proc: &Path, sys: &Path) -> Self {
        // The namespace is read from the directory of the thread, because a thread may be in
        // another network namespace than its process.
        let own = fs::metadata(proc.join("thread-self/ns/net"));
        Self {
            sys: sys.to_owned(),
            own_netns: own.map_or(0, |own| own.ino() as u32),
            foreign: BTreeMap::new(),
        }
    }

    /// Returns the number by which an interface is reported; `None` for loopback.
    pub fn id(&mut self, interface: NetInterface) -> Option<LinkId> {
        match interface.index {
            0 => Some(UNKNOWN),
            LOOPBACK => None,
            index if interface.netns == self.own_netns => Some(LinkId(index)),
            _ => {
                let next = FOREIGN.saturating_add(self.foreign.len() as u32);
                Some(*self.foreign.entry(interface).or_insert(LinkId(next)))
            }
        }
    }

    /// Returns the interface with this number.
    pub fn interface(&self, id: LinkId) -> NetInterface {
        let foreign = self.foreign.iter().find(|(_, of)| **of == id);
        foreign.map_or(
            NetInterface {
                index: id.0,
                netns: self.own_netns,
            },
            |(interface, _)| *interface,
        )
    }

    /// Returns the names of the interfaces of this namespace, and of the interfaces that were found
    /// in other namespaces.
    pub fn names(&self) -> BTreeMap<LinkId, String> {
        let mut names = named(&self.sys);
        for (interface, id) in &self.foreign {
            let name = format!("{} of network {}", interface.index, interface.netns);
            names.insert(*id, name);
        }
        names.insert(
            UNKNOWN,
            "a network interface of an unknown route".to_owned(),
        );
        names
    }
}

/// Returns the names of the interfaces of this namespace, by number.
pub(crate) fn named(sys: &Path) -> BTreeMap<LinkId, String> {
    let entries = fs::read_dir(sys.join("class/net"));
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let index = text::read(&entry.path().join("ifindex")).ok()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Some((LinkId(index.trim().parse().ok()?), name))
        })
        .filter(|(id, _)| id.0 != LOOPBACK)
        .collect()
}

/// Returns the sum of two uses.
pub(crate) fn sum(a: LinkUse, b: LinkUse) -> LinkUse {
    LinkUse {
        sends: a.sends.saturating_add(b.sends),
        sent_bytes: a.sent_bytes.saturating_add(b.sent_bytes),
        receives: a.receives.saturating_add(b.receives),
        received_bytes: a.received_bytes.saturating_add(b.received_bytes),
        packets: a.packets.saturating_add(b.packets),
        last_ns: a.last_ns.max(b.last_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_distinguished_by_namespace() {
        let mut links = KnownLinks {
            sys: "/nonexistent".into(),
            own_netns: 7,
            foreign: BTreeMap::new(),
        };
        let at = |index, netns| NetInterface { index, netns };
        assert_eq!(links.id(at(3, 7)), Some(LinkId(3)));
        assert_eq!(links.id(at(1, 7)), None);
        assert_eq!(links.id(at(1, 8)), None);
        assert_eq!(links.id(at(0, 8)), Some(UNKNOWN));
        let (first, second) = (links.id(at(3, 8)), links.id(at(3, 9)));
        assert_eq!(first, Some(LinkId(FOREIGN)));
        assert_eq!(second, Some(LinkId(FOREIGN + 1)));
        assert_eq!(links.id(at(3, 8)), first);
        assert_eq!(links.interface(LinkId(FOREIGN + 1)), at(3, 9));
        assert_eq!(links.interface(LinkId(3)), at(3, 7));
        assert_eq!(links.names()[&LinkId(FOREIGN)], "3 of network 8");
    }
}

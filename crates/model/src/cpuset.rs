// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of logical CPUs, with a parser and a formatter for the kernel's list format `0-3,8,10-11`.
//!
//! A [`CpuSet`] is a vector of 64-bit words with a bit for each CPU number. Operations on sets take
//! time proportional to the highest CPU number divided by 64. The iterator, the parser and the
//! formatter take time proportional to the highest CPU number itself. The parser rejects CPU
//! numbers above [`CPU_ID_MAX`], because such a number is a typing error that would allocate a
//! large vector. [`CpuSet::insert`] and [`CpuSet::range`] accept every number; the caller limits
//! the numbers.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "full")]
use schemars::JsonSchema;
#[cfg(feature = "full")]
use serde::{Deserialize, Serialize};

/// A logical CPU (hwloc: PU) by its operating-system number.
pub type CpuId = u32;

/// The largest CPU number that the parser accepts; a larger number is rejected as a typing error.
///
/// Linux allows at most 8,192 CPUs (`CONFIG_NR_CPUS`).
pub const CPU_ID_MAX: CpuId = 65_535;

const BITS: usize = u64::BITS as usize;

/// A set of logical CPUs.
///
/// A set is printed and serialised in the kernel's list format, such as `0-3,8`.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "full",
    derive(Serialize, Deserialize, JsonSchema),
    serde(try_from = "String", into = "String")
)]
pub struct CpuSet {
    /// Bit `i % 64` of word `i / 64` is CPU `i`; the last word is never zero.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// The set of one CPU.
    pub fn single(cpu: CpuId) -> Self {
        let mut set = Self::new();
        set.insert(cpu);
        set
    }

    /// The CPUs `first..=last`; empty where `last < first`.
    pub fn range(first: CpuId, last: CpuId) -> Self {
        (first..=last).collect()
    }

    /// Adds a CPU.
    pub fn insert(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Removes a CPU.
    pub fn remove(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        if let Some(w) = self.words.get_mut(word) {
            *w &= !bit;
        }
        self.trim();
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPU with the smallest number.
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// The CPU with the largest number.
    pub fn last(&self) -> Option<CpuId> {
        let top = self.words.last()?;
        let word = self.words.len() - 1;
        Some((word * BITS + BITS - 1 - top.leading_zeros() as usize) as CpuId)
    }

    /// The CPUs, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let next = |rest: &u64| Some(rest & (rest - 1)).filter(|rest| *rest != 0);
            let rests = std::iter::successors(Some(word).filter(|word| *word != 0), next);
            rests.map(move |rest| (i * BITS) as CpuId + rest.trailing_zeros())
        })
    }

    /// The CPUs that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.zip_words(other, |a, b| a & b)
    }

    /// The CPUs that are in either set.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        self.zip_words(other, |a, b| a | b)
    }

    /// The CPUs of this set that are not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.zip_words(other, |a, b| a & !b)
    }

    /// Whether this set and `other` have a CPU in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.minus(other).is_empty()
    }

    fn zip_words(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        let len = self.words.len().max(other.words.len());
        let word = |set: &Self, i: usize| set.words.get(i).copied().unwrap_or(0);
        let words = (0..len)
            .map(|i| op(word(self, i), word(other, i)))
            .collect();
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

fn place(cpu: CpuId) -> (usize, u64) {
    (cpu as usize / BITS, 1 << (cpu as usize % BITS))
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        cpus.into_iter().for_each(|cpu| self.insert(cpu));
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

impl TryFrom<String> for CpuSet {
    type Error = ParseCpuSetError;

    fn try_from(list: String) -> Result<Self, Self::Error> {
        list.parse()
    }
}

/// Reason for which a CPU list was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{list}' is not a CPU list such as 0-3,8: {reason}")]
pub struct ParseCpuSetError {
    /// The list as given.
    pub list: String,
    /// The reason.
    pub reason: String,
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// Parses the kernel's list format. Surrounding white space is ignored; an empty list is the
    /// empty set.
    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let error = |reason: String| ParseCpuSetError {
            list: list.to_owned(),
            reason,
        };
        let mut set = Self::new();
        for part in list.trim().split(',') {
            if part.is_empty() && list.trim().is_empty() {
                break;
            }
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (
                parse_cpu(first).map_err(error)?,
                parse_cpu(last).map_err(error)?,
            );
            if last < first {
                return Err(error(format!("the range {part} ends below its start")));
            }
            set.extend(first..=last);
        }
        Ok(set)
    }
}

fn parse_cpu(text: &str) -> Result<CpuId, String> {
    let cpu: CpuId = text
        .trim()
        .parse()
        .map_err(|_| format!("'{text}' is not a CPU number"))?;
    match cpu <= CPU_ID_MAX {
        true => Ok(cpu),
        false => Err(format!(
            "the CPU number {cpu} exceeds the maximum of {CPU_ID_MAX}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn reads_and_writes_the_kernels_list_format() {
        for list in ["", "0", "0-3", "0-3,8,10-11", "63-64", "127"] {
            assert_eq!(set(list).to_string(), list);
        }
        assert_eq!(set("3,1,2\n").to_string(), "1-3");
    }

    #[test]
    fn the_error_names_the_fault_in_a_list() {
        for (list, reason) in [
            ("4-2", "the range 4-2 ends below its start"),
            ("a", "'a' is not a CPU number"),
            ("0,,2", "'' is not a CPU number"),
            ("1-", "'' is not a CPU number"),
            (
                "99999999",
                "the CPU number 99999999 exceeds the maximum of 65535",
            ),
        ] {
            assert_eq!(list.parse::<CpuSet>().unwrap_err().reason, reason);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_btreeset(a: Vec<u8>, b: Vec<u8>) {
            let cpus = |v: &[u8]| v.iter().map(|&c| CpuId::from(c)).collect::<CpuSet>();
            let tree = |v: &[u8]| v.iter().map(|&c| CpuId::from(c)).collect::<BTreeSet<_>>();
            let (x, y, p, q) = (cpus(&a), cpus(&b), tree(&a), tree(&b));
            prop_assert!(x.iter().eq(p.iter().copied()));
            prop_assert!(x.and(&y).iter().eq(p.intersection(&q).copied()));
            prop_assert!(x.or(&y).iter().eq(p.union(&q).copied()));
            prop_assert!(x.minus(&y).iter().eq(p.difference(&q).copied()));
            prop_assert_eq!(x.is_subset(&y), p.is_subset(&q));
            prop_assert_eq!(x.intersects(&y), !p.is_disjoint(&q));
            prop_assert_eq!((x.len(), x.first(), x.last()), (p.len(), p.first().copied(), p.last().copied()));
            prop_assert_eq!(x.minus(&x), CpuSet::new());
            prop_assert_eq!(x.to_string().parse::<CpuSet>().unwrap(), x);
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges records into a table. An index finds the kind of a job and the profile of a program on a
//! node, so that the cost of a record is logarithmic in the size of the table. When the table has
//! twice as many entries as permitted, the oldest are dropped, which bounds its size during a merge.

use std::collections::{BTreeMap, BTreeSet};

use super::{Added, JobGroup, JobKey, JobTable, Limits, NodeProfile, program_id};
use crate::exchange::ExchangedProfile;
use crate::jobs::record::JobRecord;
use crate::profile::ProfileEntry;

/// A merge of records into a table.
#[derive(Debug)]
pub struct JobMerge<'a> {
    table: &'a mut JobTable,
    limits: Limits,
    /// Positions in `table.jobs`.
    jobs: BTreeMap<JobKey, usize>,
    /// Positions in `table.profiles`, by node and identity of the program.
    profiles: BTreeMap<(String, String), usize>,
    dropped: usize,
}

impl<'a> JobMerge<'a> {
    /// Starts a merge. The cost is proportional to the size of the table.
    pub fn new(table: &'a mut JobTable) -> Self {
        Self::with_limits(table, Limits::OF_TABLE)
    }

    pub(super) fn with_limits(table: &'a mut JobTable, limits: Limits) -> Self {
        let mut merge = Self {
            table,
            limits,
            jobs: BTreeMap::new(),
            profiles: BTreeMap::new(),
            dropped: 0,
        };
        merge.index();
        merge
    }

    fn index(&mut self) {
        let jobs = self.table.jobs.iter().enumerate();
        self.jobs = jobs.map(|(at, group)| (group.key(), at)).collect();
        let profiles = self.table.profiles.iter().enumerate();
        let located = |(at, one): (usize, &NodeProfile)| {
            let id = program_id(&one.entry()?);
            Some(((one.node.clone(), id), at))
        };
        self.profiles = profiles.filter_map(located).collect();
    }

    /// Merges a record, which must have been checked ([`JobRecord::read`]).
    pub fn add(&mut self, record: &JobRecord) -> Added {
        let id = record.id();
        if self.table.seen.contains_key(&id) {
            return Added::Known;
        }
        if record.ended_at_s <= self.table.horizon_s {
            return Added::TooOld;
        }
        self.table.seen.insert(id, record.ended_at_s);
        let profiles = record.programs.iter().map(|program| &program.profile);
        let programs = profiles.filter_map(|profile| {
            let entry = profile.clone().checked(i64::MAX).ok()?;
            Some(self.add_profile(&record.node, profile, &entry))
        });
        let programs: BTreeSet<String> = programs.collect();
        self.group(record).add(record, programs);
        if self.table.exceeds(self.limits.doubled()) {
            self.dropped += self.table.limit_to(self.limits);
            self.index();
        }
        Added::New
    }

    /// Drops the oldest entries beyond the limits, and sorts the table. Returns the number of
    /// entries that the merge has dropped.
    pub fn finish(self) -> usize {
        self.dropped + self.table.limit_to(self.limits)
    }

    /// Returns the numbers of identities, of kinds of jobs and of profiles.
    #[cfg(test)]
    pub(super) fn lengths(&self) -> [usize; 3] {
        let table = &self.table;
        assert_eq!(table.jobs.len(), self.jobs.len());
        assert_eq!(table.profiles.len(), self.profiles.len());
        [table.seen.len(), table.jobs.len(), table.profiles.len()]
    }

    /// Adds a profile, unless the table has a later one of the node. Returns the identity of the
    /// program.
    fn add_profile(
        &mut self,
        node: &str,
        profile: &ExchangedProfile,
        entry: &ProfileEntry,
    ) -> String {
        let id = program_id(entry);
        let order = |entry: &ProfileEntry| (entry.profile.at_s, entry.profile.runs);
        let profiles = &mut self.table.profiles;
        let end = profiles.len();
        let at = *(self.profiles)
            .entry((node.to_owned(), id.clone()))
            .or_insert(end);
        match profiles.get_mut(at) {
            Some(old) => {
                if old.entry().is_none_or(|known| order(&known) < order(entry)) {
                    old.profile = profile.clone();
                }
            }
            None => profiles.push(NodeProfile {
                node: node.to_owned(),
                profile: profile.clone(),
            }),
        }
        id
    }

    /// Returns the entry of the kind of this job, which is added if it is missing.
    fn group(&mut self, record: &JobRecord) -> &mut JobGroup {
        let groups = &mut self.table.jobs;
        let end = groups.len();
        let at = *(self.jobs).entry(JobKey::of(record)).or_insert(end);
        if at == end {
            groups.push(JobGroup::new(record));
        }
        &mut groups[at]
    }
}

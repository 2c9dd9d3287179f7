// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the profile and the budget of deliberate variation of an arriving program from the store.

use usher_model::{Curve, ProgramKey, ProgressSource, StoredCopies, VariationBudget};
use usher_store::{MachineKey, Profile, Store, StoreError};

use crate::update::history;

/// The profile of a program from earlier runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredProfile {
    /// The curve for planning.
    pub curve: Option<Curve>,
    /// Number of threads that busy-wait.
    pub spinners: u32,
    /// Whether the runtime of the program decided at the start to busy-wait; `None` if unknown.
    pub active_wait: Option<bool>,
    /// LLC bytes that the program uses when alone.
    pub llc_bytes: Option<u64>,
    /// Memory bandwidth in GB/s when the program is alone.
    pub bandwidth_gbps: Option<f64>,
    /// Progress sources that were inaccurate for the program.
    pub misleading: Vec<ProgressSource>,
    /// Whether bytes measured the progress of the program in earlier runs.
    pub trusts_bytes: bool,
    /// The copies that the program started in an earlier run with these arguments.
    pub copies: Option<StoredCopies>,
    /// Identifier of the profile, if the profile is of other arguments.
    pub similar_to: Option<String>,
}

impl From<Profile> for StoredProfile {
    fn from(profile: Profile) -> Self {
        Self {
            curve: profile.curve().map(|(curve, _)| curve),
            spinners: profile.spinners,
            active_wait: profile.active_wait,
            llc_bytes: profile.llc_bytes,
            bandwidth_gbps: profile.bandwidth_gbps,
            copies: profile.copies,
            trusts_bytes: profile.trusts(ProgressSource::Bytes),
            misleading: profile.misleading_sources(),
            similar_to: None,
        }
    }
}

/// Returns the stored profile of a program for a kind of machine. If the program has no curve of at
/// least two points, returns the profile of other, similar arguments, if this profile has such a
/// curve or the program has none.
///
/// # Errors
/// The store cannot be read.
pub fn recall(
    store: &Store,
    key: &ProgramKey,
    machine: &MachineKey,
) -> Result<StoredProfile, StoreError> {
    let own = store.lookup(key, machine)?.map(StoredProfile::from);
    let own = own.unwrap_or_default();
    let points = |curve: &Option<Curve>| curve.as_ref().map_or(0, |c| c.points().len());
    let own_points = points(&own.curve);
    if own_points >= 2 {
        return Ok(own);
    }
    let Some(entry) = store.similar(key, machine)? else {
        return Ok(own);
    };
    let similar_to = Some(entry.id());
    let similar = StoredProfile::from(entry.profile);
    match points(&similar.curve) > own_points {
        true => Ok(StoredProfile {
            misleading: own.misleading,
            copies: own.copies,
            trusts_bytes: own.trusts_bytes,
            spinners: own.spinners.max(similar.spinners),
            active_wait: own.active_wait.or(similar.active_wait),
            similar_to,
            ..similar
        }),
        false => Ok(own),
    }
}

/// Returns the time that the next run of a program may lose to deliberate variation, with the usual
/// slowdown of the program; `None` before the first ordinary run.
///
/// # Errors
/// The store cannot be read.
pub fn variation_budget(
    store: &Store,
    key: &ProgramKey,
    machine: &MachineKey,
) -> Result<Option<VariationBudget>, StoreError> {
    let Some(record) = store.variation(key, machine)? else {
        return Ok(None);
    };
    let budget = history(record).budget();
    let profile = store.lookup(key, machine)?;
    let usual_slowdown = profile.map_or(1.0, |profile| slowdown(&profile, budget.usual_seconds));
    Ok(Some(VariationBudget {
        usual_slowdown,
        ..budget
    }))
}

/// Returns the ratio of `usual_seconds` to the duration of a run alone on the most cores that were
/// measured, at least 1; 1 if no whole run was measured.
fn slowdown(profile: &Profile, usual_seconds: f64) -> f64 {
    let points = profile.points.iter();
    let runs = points.filter(|stored| stored.source == ProgressSource::Repetition);
    let widest = runs.max_by(|a, b| a.point.cores.total_cmp(&b.point.cores));
    widest.map_or(1.0, |stored| (usual_seconds * stored.point.rate).max(1.0))
}

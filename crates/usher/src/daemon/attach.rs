// SPDX-License-Identifier: GPL-2.0-only
//! The arguments of the method `Attach`: converts them to the options of the engine, and checks
//! their forms. The engine checks the owner of the process, and whether the bounds are online.
//!
//! Bounds: the names of a group and of a job have 1 to 128 letters, digits and characters of
//! `._+:[]-`; a list of CPUs has at most 32 KiB.

use std::ffi::OsString;
use std::path::PathBuf;

use usher_host::engine::{AdoptOptions, ProgramReview};
use usher_model::{CpuSet, Regulation};

use super::refusal::Refusal;
use super::service::bad;
use crate::api;
use crate::cli::options::{cpu_list, job_name};

/// The optional arguments of a request.
pub struct AttachRequest {
    /// The name of the program.
    pub name: Option<String>,
    /// The weight of the program.
    pub weight: Option<f64>,
    /// The policy for background work.
    pub background: Option<String>,
    /// The list of CPUs to which seats are restricted.
    pub bounds: Option<String>,
    /// The group of processes that are one program.
    pub group: Option<String>,
    /// The job of a batch system.
    pub job: Option<String>,
    /// What the process is about to execute.
    pub command: Option<api::Command>,
}

impl AttachRequest {
    /// Converts the arguments to the options of the engine.
    ///
    /// # Errors
    /// The argument that is invalid.
    pub fn options(self, review: ProgramReview) -> Result<AdoptOptions, Refusal> {
        let argv = |command: &api::Command| -> Result<Vec<String>, Refusal> {
            match command.argv.is_empty() {
                true => Err(bad("command", "the command line has no words".to_owned())),
                false => Ok(command.argv.clone()),
            }
        };
        let argv = self.command.as_ref().map(argv).transpose()?;
        let named = |argument, name: Option<String>| {
            let checked = name.map(|name| job_name(&name));
            let checked = checked.transpose();
            checked.map_err(|reason| bad(argument, reason))
        };
        let (cwd, path) = self.command.map_or((None, None), |one| (one.cwd, one.path));
        let path = path.map(|path| (OsString::from("PATH"), OsString::from(path)));
        Ok(AdoptOptions {
            background: regulation(self.background.as_deref())?,
            name: self.name,
            weight: self.weight.unwrap_or(1.0),
            bound_to: bounds(self.bounds.as_deref())?,
            group: named("group", self.group)?,
            job: named("job", self.job)?,
            cwd: cwd.map(PathBuf::from),
            env: path.into_iter().collect(),
            review: Some(review),
            ..AdoptOptions::new(argv.unwrap_or_default())
        })
    }
}

/// Returns the user with whose rights a request of the user `peer` is carried out.
///
/// # Errors
/// A user other than root gives another user, or the number is no user.
pub fn requesting_user(peer: u32, given: Option<i64>) -> Result<u32, Refusal> {
    let Some(given) = given else {
        return Ok(peer);
    };
    let user = u32::try_from(given).ok().filter(|&uid| uid != u32::MAX);
    let user = user.ok_or_else(|| bad("uid", format!("{given} is not the number of a user")))?;
    match [0, user].contains(&peer) {
        true => Ok(user),
        false => Err(bad(
            "uid",
            format!("only root may make requests for user {user}"),
        )),
    }
}

fn bounds(list: Option<&str>) -> Result<Option<CpuSet>, Refusal> {
    let parsed = list.map(cpu_list).transpose();
    parsed.map_err(|reason| bad("bounds", reason))
}

/// Returns the policy with this name.
pub fn regulation(name: Option<&str>) -> Result<Option<Regulation>, Refusal> {
    let known = |name: &str| {
        let found = Regulation::ALL.into_iter().find(|one| one.name() == name);
        let names = Regulation::ALL.map(Regulation::name).join(", ");
        found.ok_or_else(|| bad("background", format!("'{name}' is not one of {names}")))
    };
    name.map(known).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(refusal: Refusal) -> (&'static str, String) {
        match refusal {
            Refusal::BadArgument { argument, reason } => (argument, reason),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_root_may_attach_for_another_user() {
        assert_eq!(requesting_user(1000, None).unwrap(), 1000);
        assert_eq!(requesting_user(1000, Some(1000)).unwrap(), 1000);
        assert_eq!(requesting_user(0, Some(1000)).unwrap(), 1000);
        for (peer, given) in [(1000, 0), (1000, 1001), (0, -1), (0, i64::from(u32::MAX))] {
            let refused = requesting_user(peer, Some(given)).unwrap_err();
            assert_eq!(reason(refused).0, "uid", "{peer} {given}");
        }
    }

    #[test]
    fn malformed_bounds_are_rejected() {
        for list in ["", " ", "3-1", "a", "0-", "1,,2", "-1", "99999999999"] {
            let refused = bounds(Some(list)).unwrap_err();
            assert_eq!(reason(refused).0, "bounds", "'{list}'");
        }
        let cpus = bounds(Some("0-2,7")).unwrap().unwrap();
        assert_eq!(cpus.to_string(), "0-2,7");
    }
}

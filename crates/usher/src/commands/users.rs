// SPDX-License-Identifier: GPL-2.0-only
//! Names of users, from the system's user database. A user without an entry is shown by its number.

use std::collections::BTreeMap;
use std::ffi::CStr;

/// Upper limit of the buffer for one entry of the user database, in bytes.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// Names of users that were already looked up.
#[derive(Debug, Default)]
pub struct UserNames {
    known: BTreeMap<i64, String>,
}

impl UserNames {
    /// Returns the name of a user, or the number of a user without a name.
    pub fn name(&mut self, uid: i64) -> String {
        let name = || {
            let found = u32::try_from(uid).ok().and_then(look_up);
            found.unwrap_or_else(|| uid.to_string())
        };
        self.known.entry(uid).or_insert_with(name).clone()
    }
}

/// Returns the name of a user; `None` if the user has no entry, or the database cannot be read.
fn look_up(uid: u32) -> Option<String> {
    let mut buffer = vec![0u8; 1024];
    loop {
        let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and `buffer.len()` is the size of the
        // buffer.
        let error = unsafe {
            libc::getpwuid_r(
                uid,
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        match error {
            0 if found.is_null() => return None,
            0 => {
                // SAFETY: the call succeeded, so `found` points to `entry`, which is initialised,
                // and `pw_name` is a C string in `buffer`.
                let name = unsafe { CStr::from_ptr((*found).pw_name) };
                return Some(name.to_string_lossy().into_owned());
            }
            libc::ERANGE if buffer.len() < ENTRY_BYTES_MAX => buffer.resize(buffer.len() * 2, 0),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_an_entry_is_shown_by_number() {
        let mut names = UserNames::default();
        assert_eq!(names.name(0), "root");
        assert_eq!(names.name(4_294_967_294_i64 - 3), "4294967291");
        assert_eq!(names.name(-5), "-5");
    }
}

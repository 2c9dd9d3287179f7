// SPDX-License-Identifier: GPL-2.0-only
//! The system's user database: the name of a user, and the number of a user with a name.
//!
//! An entry may be larger than the buffer of a look-up. The look-up is then repeated with twice the
//! buffer, up to 1 MiB ([`ENTRY_BYTES_MAX`]).

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};

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
            let found = u32::try_from(uid).ok().and_then(name_of);
            found.unwrap_or_else(|| uid.to_string())
        };
        self.known.entry(uid).or_insert_with(name).clone()
    }
}

/// Returns the name of a user; `None` if the user has no entry, or the database cannot be read.
fn name_of(uid: u32) -> Option<String> {
    // SAFETY: `look_up` passes valid pointers and the size of the buffer.
    let call =
        |entry, buffer, size, found| unsafe { libc::getpwuid_r(uid, entry, buffer, size, found) };
    look_up(call, |entry| {
        // SAFETY: the entry is the result of a successful call, so the name is a C string.
        let name = unsafe { CStr::from_ptr(entry.pw_name) };
        name.to_string_lossy().into_owned()
    })
}

/// Returns the number of the user with a name; `None` if no user has the name, or the database
/// cannot be read.
pub fn uid_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: `look_up` passes valid pointers and the size of the buffer; the name is a C string.
    let call = |entry, buffer, size, found| unsafe {
        libc::getpwnam_r(name.as_ptr(), entry, buffer, size, found)
    };
    look_up(call, |entry| entry.pw_uid)
}

/// Calls a look-up with a buffer that is large enough, and reads the found entry.
fn look_up<T>(
    mut call: impl FnMut(*mut libc::passwd, *mut c_char, usize, *mut *mut libc::passwd) -> c_int,
    read: impl FnOnce(&libc::passwd) -> T,
) -> Option<T> {
    let mut buffer = vec![0u8; 1024];
    loop {
        let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        let size = buffer.len();
        let error = call(
            entry.as_mut_ptr(),
            buffer.as_mut_ptr().cast(),
            size,
            &raw mut found,
        );
        match error {
            0 if found.is_null() => return None,
            // SAFETY: the call succeeded, so `found` points to `entry`, which is initialised and
            // whose texts are in `buffer`; both live until the end of `read`.
            0 => return Some(read(unsafe { &*found })),
            libc::ERANGE if size < ENTRY_BYTES_MAX => buffer.resize(size * 2, 0),
            libc::EINTR => {}
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

    #[test]
    fn a_name_leads_to_the_number_of_the_user() {
        assert_eq!(uid_of("root"), Some(0));
        assert_eq!(uid_of("no such user"), None);
        assert_eq!(uid_of("ro\0ot"), None);
    }

    #[test]
    fn an_entry_larger_than_the_buffer_is_read() {
        let mut sizes = Vec::new();
        let call = |_, _, size, _: *mut *mut libc::passwd| {
            sizes.push(size);
            if size < 4096 { libc::ERANGE } else { 0 }
        };
        assert_eq!(look_up(call, |entry| entry.pw_uid), None);
        assert_eq!(sizes, [1024, 2048, 4096]);
    }
}

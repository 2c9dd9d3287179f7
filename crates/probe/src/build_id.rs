// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the GNU build id of an ELF file: the linker's hash of the file's content, which changes
//! with each rebuild.
//!
//! 1. Read the ELF header and the program headers, of 64 bits or else of 32 bits.
//! 2. In the note segments (`PT_NOTE`), search the note `NT_GNU_BUILD_ID` of the name `GNU`.
//!
//! Bounds: the creator of the file determines the sizes in it, and the reader keeps in memory all
//! that it reads. The search therefore reads at most 2 MiB ([`ELF_BYTES_MAX`]) of at most 64 note
//! segments ([`NOTE_SEGMENTS_MAX`]). A build id beyond these limits, or in a damaged file, is not
//! found.

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;

use object::Endianness;
use object::elf::{FileHeader32, FileHeader64, NT_GNU_BUILD_ID, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};

/// Maximum number of bytes of an executable that are read for its build id, in all reads together.
const ELF_BYTES_MAX: u64 = 2 << 20;
/// Maximum number of note segments in which the build id is searched. The executables and
/// libraries of Debian 12 have at most two.
const NOTE_SEGMENTS_MAX: usize = 64;

/// Returns the GNU build id of an ELF file; `None` if the file has none or is no ELF file.
pub(crate) fn build_id(file: &File) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    build_id_of(&cache)
}

/// Searches the build id, and reads at most [`ELF_BYTES_MAX`].
fn build_id_of<'a, R: ReadRef<'a>>(reader: R) -> Option<Vec<u8>> {
    let left = Cell::new(ELF_BYTES_MAX);
    let data = BoundedReader {
        reader,
        left: &left,
    };
    let id = id_in_notes::<FileHeader64<Endianness>, _>(data);
    id.or_else(|| id_in_notes::<FileHeader32<Endianness>, _>(data))
}

fn id_in_notes<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(data: R) -> Option<Vec<u8>> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?.iter();
    let noted = segments.filter(|segment| segment.p_type(endian) == PT_NOTE);
    for segment in noted.take(NOTE_SEGMENTS_MAX) {
        let Ok(Some(mut notes)) = segment.notes(endian, data) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"GNU" && note.n_type(endian) == NT_GNU_BUILD_ID {
                let id = note.desc();
                return (!id.is_empty()).then(|| id.to_vec());
            }
        }
    }
    None
}

/// A file reader that refuses reads beyond a total number of bytes, because the creator of an ELF
/// file determines the sizes that the file contains, and [`ReadCache`] keeps all that is read.
#[derive(Clone, Copy)]
struct BoundedReader<'l, R> {
    reader: R,
    /// Number of bytes that may still be read.
    left: &'l Cell<u64>,
}

impl<'a, R: ReadRef<'a>> ReadRef<'a> for BoundedReader<'_, R> {
    fn len(self) -> Result<u64, ()> {
        self.reader.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.left.set(self.left.get().checked_sub(size).ok_or(())?);
        self.reader.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let end = range.end.min(range.start.saturating_add(self.left.get()));
        let size = end.saturating_sub(range.start);
        self.left.set(self.left.get().saturating_sub(size));
        self.reader.read_bytes_at_until(range.start..end, delimiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that counts the bytes that are read.
    #[derive(Clone, Copy)]
    struct CountingReader<'a> {
        data: &'a [u8],
        bytes: &'a Cell<u64>,
        reads: &'a Cell<u64>,
    }

    impl<'a> ReadRef<'a> for CountingReader<'a> {
        fn len(self) -> Result<u64, ()> {
            Ok(self.data.len() as u64)
        }

        fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
            self.bytes.set(self.bytes.get() + size);
            self.reads.set(self.reads.get() + 1);
            self.data.read_bytes_at(offset, size)
        }

        fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
            self.data.read_bytes_at_until(range, delimiter)
        }
    }

    /// An ELF file of `count` note segments of `bytes` each, without a build id. The segments
    /// overlap, and each begins at another offset.
    fn elf_with_notes(count: u16, bytes: u64) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        file.extend([0; 8]);
        file.extend(64_u64.to_le_bytes());
        file.extend([0; 12]);
        for half in [64, 56, count, 0, 0, 0_u16] {
            file.extend(half.to_le_bytes());
        }
        let start = 64 + 56 * u64::from(count);
        for index in 0..u64::from(count) {
            file.extend([4, 0, 0, 0, 4, 0, 0, 0]);
            for word in [start + 4 * index, 0, 0, bytes, bytes, 4] {
                file.extend(word.to_le_bytes());
            }
        }
        file.resize((start + 4 * u64::from(count) + bytes) as usize, 0);
        file
    }

    #[test]
    fn the_search_for_the_build_id_reads_a_bounded_part_of_a_crafted_executable() {
        for (count, segment_bytes) in [(100, 1 << 20), (10_000, 16)] {
            let file = elf_with_notes(count, segment_bytes);
            let (bytes, reads) = (Cell::new(0), Cell::new(0));
            let data = CountingReader {
                data: &file,
                bytes: &bytes,
                reads: &reads,
            };
            assert_eq!(build_id_of(data), None);
            assert!(bytes.get() > segment_bytes, "no segment was read");
            assert!(bytes.get() <= ELF_BYTES_MAX, "{} bytes", bytes.get());
            assert!(reads.get() < 100, "{} reads", reads.get());
        }
    }
}

//! Which partition of an internal topic keeps a group or a transactional id: Java's `String.hashCode`, absolute, modulo the
//! partition count.

/// Partitions of an internal topic; fixed for ever, since it decides where what is kept there lives.
pub(crate) const PARTITIONS: i32 = 50;

/// The partition of a group or transactional id.
pub(crate) fn partition_of(id: &str) -> i32 {
    // Java's Utils.abs: the one value without a positive counterpart becomes 0.
    java_hash(id).checked_abs().unwrap_or(0) % PARTITIONS
}

/// `String.hashCode`: over UTF-16 units.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        for (text, hash) in [
            ("", 0),
            ("a", 97),
            ("hello", 99_162_322),
            ("my-group", -1_906_497_762),
            ("polygenelubricants", i32::MIN),
            ("äö", 7_314),
            ("😀", 1_772_899),
        ] {
            assert_eq!(java_hash(text), hash, "{text}");
        }
    }

    #[test]
    fn partitions_are_those_of_kafka() {
        for (group, partition) in
            [("", 0), ("a", 47), ("hello", 22), ("my-group", 12), ("polygenelubricants", 0)]
        {
            assert_eq!(partition_of(group), partition, "{group}");
        }
    }
}

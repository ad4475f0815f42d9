//! The topics in a consumer's subscription, the one part of members' metadata that the coordinator looks at.
//!
//! ```text
//! version 2 | topic count 4 | (length 2, name)… | user data and later fields, not read here
//! ```

/// Protocol type of consumers.
pub(crate) const PROTOCOL_TYPE: &str = "consumer";

/// The topics; `None` when the bytes are no subscription.
pub(crate) fn topics(bytes: &[u8]) -> Option<Vec<String>> {
    let (version, rest) = bytes.split_first_chunk::<2>()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_be_bytes(*count)).ok()?;
    // Every name takes two bytes at least: a count that lies allocates nothing.
    if count > rest.len() / 2 {
        return None;
    }
    let mut topics = Vec::with_capacity(count);
    for _ in 0..count {
        let (len, after) = rest.split_first_chunk::<2>()?;
        let len = usize::try_from(i16::from_be_bytes(*len)).ok()?;
        let (name, after) = after.split_at_checked(len)?;
        topics.push(std::str::from_utf8(name).ok()?.to_owned());
        rest = after;
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn topics_of_a_subscription_are_read() {
        let bytes = [0, 1, 0, 0, 0, 2, 0, 1, b'a', 0, 2, b'b', b'c', 0xff, 0xff, 0xff, 0xff];
        assert_eq!(topics(&bytes), Some(vec!["a".to_owned(), "bc".to_owned()]));
        assert_eq!(topics(&[0, 1, 0, 0, 0, 0]), Some(vec![]));
    }

    #[test]
    fn lengths_that_lie_are_no_subscription() {
        assert_eq!(topics(&[]), None);
        assert_eq!(topics(&[0, 1, 0x7f, 0xff, 0xff, 0xff, 0, 1]), None);
        assert_eq!(topics(&[0, 1, 0, 0, 0, 1, 0x7f, 0xff, b'a']), None);
        assert_eq!(topics(&[0, 1, 0, 0, 0, 1, 0, 1, 0xff]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = topics(&bytes);
        }
    }
}

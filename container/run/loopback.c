/* Preloaded into mpirun: a socket that would listen on all interfaces listens on loopback only.
 *
 * Open MPI's mpirun opens a port for daemons on other machines and has no setting for its address. We run on one
 * machine and have no such daemons. */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int bind(int fd, const struct sockaddr *address, socklen_t length) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address != NULL && address->sa_family == AF_INET && length >= sizeof v4) {
        memcpy(&v4, address, sizeof v4);
        if (v4.sin_addr.s_addr == htonl(INADDR_ANY)) {
            v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            return (int)syscall(SYS_bind, fd, &v4, (socklen_t)sizeof v4);
        }
    }
    if (address != NULL && address->sa_family == AF_INET6 && length >= sizeof v6) {
        memcpy(&v6, address, sizeof v6);
        if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) {
            v6.sin6_addr = in6addr_loopback;
            return (int)syscall(SYS_bind, fd, &v6, (socklen_t)sizeof v6);
        }
    }
    return (int)syscall(SYS_bind, fd, address, length);
}

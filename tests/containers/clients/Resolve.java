// Resolve NAME...: what Java's InetAddress says, a line for each name.
import java.net.InetAddress;
import java.net.UnknownHostException;

class Resolve {
    public static void main(String[] names) {
        for (String name : names) {
            StringBuilder line = new StringBuilder(name);
            try {
                for (InetAddress one : InetAddress.getAllByName(name)) {
                    line.append(' ').append(one.getHostAddress());
                }
            } catch (UnknownHostException error) {
                line.append(" no-name");
            }
            System.out.println(line);
        }
    }
}
